"""All that training changes: parameters, state of the layers, state of the optimizer."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.autograd import Tensor
from hpctrain.comm.agree import digest
from hpctrain.comm.group import Group
from hpctrain.errors import CheckpointError, ShapeError
from hpctrain.optim import Optimizer
from hpctrain.parallel.flat import FlatParameters, Slice
from hpctrain.parallel.remote import Remote

__all__ = ["ModelState"]


class ModelState:
    """The state of one replica, or, of the optimizer, this rank's part of it.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        Initialised, in the order of the model; see `hpctrain.nn.Block.collect_params`.
    optimizer : Optimizer
    slice_bytes : int
        Size of a slice of the flat buffers, about.
    like : Tensor, optional
        Has the dtype and device of the buffers if no parameter is trained on this rank.

    Attributes
    ----------
    flat : FlatParameters
    optimizer : dict of str to array, shape (total,)
        State of the optimizer, laid out like the parameters; after `shard` this rank's parts of
        the slices, one behind the other.
    trained, leaves : list of Tensor
        Trained parameters; all parameters and layer state.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        optimizer: Optimizer,
        slice_bytes: int = 2**20,
        like: Tensor | None = None,
    ) -> None:
        trained = {n: p for n, p in parameters.items() if p.grad_req != "null"}
        if not trained and like is None:
            raise ShapeError("model: it has no parameter to train")
        self.names = list(trained)
        self._parameters = list(trained.values())
        self.trained = [p.data() for p in self._parameters]
        self.leaves = [p.data() for p in parameters.values()]
        self.fixed = {n: p.data() for n, p in parameters.items() if p.grad_req == "null"}
        # Random streams: (key, counter, row); the row differs over ranks by design.
        self.streams = [t for t in self.fixed.values() if t.dtype == np.uint64]
        self.flat = FlatParameters(self.trained, slice_bytes, like)
        self.device = self.flat.device
        self.optimizer = optimizer.make_state(
            self.flat.total, self.flat.dtype, self.device.module
        )
        self.parts: list[tuple[int, int, int]] = []  # start, stop, place in the state
        self.remote: Remote | None = None  # if servers keep the optimizer's state

    def shard(self, own: Callable[[Slice], tuple[int, int]]) -> None:
        """Keep the optimizer's state of this rank's part of each slice only.

        Parameters
        ----------
        own : callable
            Returns start and stop of this rank's part of a slice.
        """
        parts = [own(piece) for piece in self.flat.slices]
        lengths = [stop - start for start, stop in parts]
        ends = list(accumulate(lengths))
        self.parts = [
            (start, stop, end - (stop - start))
            for (start, stop), end in zip(parts, ends, strict=True)
        ]
        for name, array in self.optimizer.items():
            kept = [array[start:stop] for start, stop in parts]
            self.optimizer[name] = self.device.module.concatenate(kept)

    def shift(self, index: int) -> int:
        """Return how much further back an element of a slice is in the optimizer's state."""
        if not self.parts:
            return 0
        start, _, place = self.parts[index]
        return start - place

    @property
    def counted(self) -> list[bool]:
        """Whether this rank counts each trained parameter in sums over ranks."""
        return [True] * len(self.names)

    @property
    def sharded(self) -> bool:
        """Whether this rank has a part of the optimizer's state only."""
        return bool(self.parts)

    def leave(self) -> None:
        """Move to memory of its own, before that where the buffers lie is given back."""
        self.flat.move(self.flat.zeros(), self.flat.zeros())

    def factors(self) -> list[tuple[float, float]]:
        """Return (lr_mult, wd_mult) of each trained parameter."""
        return [(p.lr_mult, p.wd_mult) for p in self._parameters]

    def facts(self) -> dict[str, str]:
        """Return names, shapes and dtypes, for the ranks to compare."""
        found = {
            f"parameter {n}": str(t.spec) for n, t in zip(self.names, self.trained, strict=True)
        }
        return {**found, **{f"state {n}": str(t.spec) for n, t in self.fixed.items()}}

    def broadcast(self, group: Group, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Give every rank of ``group`` the state of its rank 0.

        Parameters
        ----------
        group : Group
        arrays : mapping of str to ndarray, optional
            What rank 0 has loaded; other ranks may pass any mapping. Where each rank has a part
            of the optimizer's state, rank 0 sends it from these; without, that state stays.
        """
        shared = () if self.sharded else self.optimizer.values()
        for array in (self.flat.weights, *shared):
            group.bcast(array, 0)
        for tensor in self.fixed.values():
            group.bcast(tensor.value, 0)
        if self.remote is not None and arrays is not None:
            self._entrust(self.remote, arrays)
        elif self.sharded and arrays is not None:
            self._scatter(group, arrays)

    def _entrust(self, remote: Remote, arrays: Mapping[str, np.ndarray]) -> None:
        """Give servers the parameters, and the optimizer's state in ``arrays`` of rank 0."""
        whole = {}
        if remote.leads:
            whole = {n: self._laid_out(f"optimizer/{n}", arrays) for n in self.optimizer}
            whole["weights"] = backend.to_host(self.flat.weights)
        remote.store(whole)

    def _scatter(self, group: Group, arrays: Mapping[str, np.ndarray]) -> None:
        """Send every rank its part of the optimizer's state in ``arrays`` of rank 0."""
        parts = group.gather_obj(self.parts)
        for name, mine in self.optimizer.items():
            if parts is None:
                group.recv(mine, 0)
                continue
            whole = self._laid_out(f"optimizer/{name}", arrays)
            for rank in range(1, group.size):
                group.send(_cut(whole, parts[rank]), rank)

    def _gather(self, group: Group) -> dict[str, np.ndarray]:
        """Return the optimizer's state of all ranks on rank 0, in whole buffers."""
        if self.remote is not None:
            return self.remote.fetch()
        parts, found = group.gather_obj(self.parts), {}
        for name, mine in self.optimizer.items():
            if parts is None:
                group.send(mine, 0)
                continue
            found[name] = np.zeros(self.flat.total, self.flat.dtype)
            for rank, spans in enumerate(parts):
                part = backend.to_host(mine)
                if rank:
                    part = np.empty(sum(b - a for a, b, _ in spans), self.flat.dtype)
                    group.recv(part, rank)
                for start, stop, place in spans:
                    found[name][start:stop] = part[place : place + stop - start]
        return found

    def _laid_out(self, prefix: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return named arrays in one buffer, as the parameters lie, on the host."""
        buffer = np.zeros(self.flat.total, self.flat.dtype)
        for place, name in enumerate(self.names):
            self.flat.view(buffer, place)[...] = arrays[f"{prefix}/{name}"]
        return buffer

    def average_layers(self, group: Group) -> dict[str, Any]:
        """Replace floating layer state, such as running statistics, by its mean over ranks.

        Returns
        -------
        dict of str to array
            The state of this rank before, for `restore_layers`.
        """
        own = {name: tensor.value.copy() for name, tensor in self.moving().items()}
        for tensor in self.moving().values():
            if group.size > 1:
                group.allreduce(tensor.value)
                tensor.value /= group.size
        return own

    def restore_layers(self, own: Mapping[str, Any]) -> None:
        """Take back the layer state that `average_layers` returned."""
        for name, array in own.items():
            self.fixed[name].value[...] = array

    def digest(self) -> str:
        """Return a digest of all parameters: equal on ranks that are in step."""
        return digest([backend.to_host(self.flat.weights)])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return everything by name, on the host: what a checkpoint holds. Views on a CPU.

        Where this rank has a part of the optimizer's state only, that is left out: `gathered`
        has it.
        """
        return self._named({} if self.sharded else self.optimizer)

    def _named(self, optimizer: Mapping[str, Any]) -> dict[str, np.ndarray]:
        found = self._under("parameters", self.flat.weights)
        for name, buffer in optimizer.items():
            found.update(self._under(f"optimizer/{name}", buffer))
        for name, tensor in self.fixed.items():
            found[f"layers/{name}"] = backend.to_host(tensor.value)
            if tensor.dtype == np.uint64:  # a step sets the row; it differs over the ranks
                found[f"layers/{name}"] = found[f"layers/{name}"] * np.array([1, 1, 0], "u8")
        return found

    def moving(self) -> dict[str, Any]:
        """Return the layer state that may differ between ranks: floating, not broadcast."""
        return {n: t for n, t in self.fixed.items() if t.dtype.kind == "f"}

    def on_device(self, array: np.ndarray) -> Any:
        """Return ``array`` where this state lives."""
        return backend.to_device(array, self.device)

    def gathered(self, group: Group) -> dict[str, np.ndarray]:
        """Return `arrays`, with the layer state as its mean over the ranks; collective.

        Each rank's own layer state is added under ``ranks/``, stacked by rank, so that a run
        on as many ranks goes on with the same bits. The optimizer's state, if each rank has a
        part of it, is put together on rank 0, by one message from each rank, and is not in what
        the others get.
        """
        found = self._named(self._gather(group)) if self.sharded else self.arrays()
        for name, tensor in self.moving().items():
            mine = np.ascontiguousarray(backend.to_host(tensor.value))
            every = np.empty((group.size, *mine.shape), mine.dtype)
            group.allgather(mine, every)
            every = every[: group.size]  # a rank may have died meanwhile
            found[f"layers/{name}"] = every.mean(0, dtype=np.float64).astype(mine.dtype)
            if group.size > 1:
                found[f"ranks/{name}"] = every
        return found

    def _under(self, prefix: str, buffer: Any) -> dict[str, np.ndarray]:
        return {f"{prefix}/{n}": a for n, a in self.flat.named(self.names, buffer).items()}

    def load(self, arrays: Mapping[str, np.ndarray], optimizer: bool = True) -> None:
        """Take the state from ``arrays``, as `arrays` or `gathered` gave it.

        Of the optimizer's state this rank's part, if it has no more.

        Raises
        ------
        CheckpointError
            If a name is missing or too many, or a shape or dtype differs; nothing is changed.
        """
        mine = self._kinds(optimizer)
        if not optimizer:
            arrays = {n: a for n, a in arrays.items() if not n.startswith("optimizer/")}
        odd = sorted(mine.keys() ^ arrays.keys())
        if odd:
            side = "the model" if odd[0] in mine else "the checkpoint"
            raise CheckpointError(f"checkpoint: {odd[0]} is only in {side}; use the same model")
        for name, (shape, dtype) in mine.items():
            if shape != arrays[name].shape or dtype != arrays[name].dtype:
                raise CheckpointError(
                    f"checkpoint: {name} is {arrays[name].dtype}{list(arrays[name].shape)}, "
                    f"the model needs {dtype}{list(shape)}; use the same model"
                )
        self._copy(arrays, optimizer)

    def _kinds(self, optimizer: bool) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return the shapes and dtypes that a checkpoint has."""
        buffers = dict.fromkeys(self.optimizer if optimizer else (), self.flat.weights)
        return {n: (a.shape, a.dtype) for n, a in self._named(buffers).items()}

    def _copy(self, arrays: Mapping[str, np.ndarray], optimizer: bool) -> None:
        self.flat.weights[...] = self.on_device(self._laid_out("parameters", arrays))
        for name, buffer in self.optimizer.items() if optimizer else ():
            whole = self._laid_out(f"optimizer/{name}", arrays)
            buffer[...] = self.on_device(_cut(whole, self.parts) if self.sharded else whole)
        for name, tensor in self.fixed.items():
            tensor.value[...] = backend.to_device(arrays[f"layers/{name}"], self.device)


def _cut(whole: np.ndarray, parts: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Return the parts of a buffer that one rank has, one behind the other."""
    return np.concatenate([whole[start:stop] for start, stop, _ in parts])
