"""All that training changes: parameters, state of the layers, state of the optimizer."""

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.comm.agree import digest
from hpctrain.comm.group import Group
from hpctrain.errors import CheckpointError, ShapeError
from hpctrain.optim import Optimizer
from hpctrain.parallel.flat import FlatParameters, Slice

__all__ = ["ModelState"]


class ModelState:
    """The state of one replica.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        Initialised, in the order of the model; see `hpctrain.nn.Block.collect_params`.
    optimizer : Optimizer
    slice_bytes : int
        Size of a slice of the flat buffers, about.

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
        self, parameters: Mapping[str, Any], optimizer: Optimizer, slice_bytes: int = 2**20
    ) -> None:
        trained = {n: p for n, p in parameters.items() if p.grad_req != "null"}
        if not trained:
            raise ShapeError("model: it has no parameter to train")
        self.names = list(trained)
        self._parameters = list(trained.values())
        self.trained = [p.data() for p in self._parameters]
        self.leaves = [p.data() for p in parameters.values()]
        self.fixed = {n: p.data() for n, p in parameters.items() if p.grad_req == "null"}
        # Random streams: (key, counter, row); the row differs over ranks by design.
        self.streams = [t for t in self.fixed.values() if t.dtype == np.uint64]
        self.device = self.trained[0].device
        self.flat = FlatParameters(self.trained, slice_bytes)
        self.optimizer = optimizer.make_state(
            self.flat.total, self.flat.dtype, self.device.module
        )
        self.parts: list[tuple[int, int, int]] = []  # start, stop, place in the state

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

    def factors(self) -> list[tuple[float, float]]:
        """Return (lr_mult, wd_mult) of each trained parameter."""
        return [(p.lr_mult, p.wd_mult) for p in self._parameters]

    def facts(self) -> dict[str, str]:
        """Return names, shapes and dtypes, for the ranks to compare."""
        found = {
            f"parameter {n}": str(t.spec) for n, t in zip(self.names, self.trained, strict=True)
        }
        return {**found, **{f"state {n}": str(t.spec) for n, t in self.fixed.items()}}

    def broadcast(self, group: Group) -> None:
        """Give every rank of ``group`` the state of its rank 0."""
        for array in (self.flat.weights, *self.optimizer.values()):
            group.bcast(array, 0)
        for tensor in self.fixed.values():
            group.bcast(tensor.value, 0)

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
        """Return everything by name, on the host: what a checkpoint holds. Views on a CPU."""
        found = self._under("parameters", self.flat.weights)
        for name, buffer in self.optimizer.items():
            found.update(self._under(f"optimizer/{name}", buffer))
        for name, tensor in self.fixed.items():
            found[f"layers/{name}"] = backend.to_host(tensor.value)
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
        on as many ranks goes on with the same bits.
        """
        found = self.arrays()
        for name, tensor in self.moving().items():
            mine = np.ascontiguousarray(backend.to_host(tensor.value))
            every = np.empty((group.size, *mine.shape), mine.dtype)
            group.allgather(mine, every)
            found[f"layers/{name}"] = every.mean(0, dtype=np.float64).astype(mine.dtype)
            if group.size > 1:
                found[f"ranks/{name}"] = every
        return found

    def _under(self, prefix: str, buffer: Any) -> dict[str, np.ndarray]:
        return {f"{prefix}/{n}": a for n, a in self.flat.named(self.names, buffer).items()}

    def load(self, arrays: Mapping[str, np.ndarray], optimizer: bool = True) -> None:
        """Take the state from ``arrays``, as `arrays` gave it.

        Raises
        ------
        CheckpointError
            If a name is missing or too many, or a shape or dtype differs; nothing is changed.
        """
        mine = self.arrays()
        if not optimizer:
            mine = {n: a for n, a in mine.items() if not n.startswith("optimizer/")}
            arrays = {n: a for n, a in arrays.items() if not n.startswith("optimizer/")}
        odd = sorted(mine.keys() ^ arrays.keys())
        if odd:
            side = "the model" if odd[0] in mine else "the checkpoint"
            raise CheckpointError(f"checkpoint: {odd[0]} is only in {side}; use the same model")
        for name, array in mine.items():
            if array.shape != arrays[name].shape or array.dtype != arrays[name].dtype:
                raise CheckpointError(
                    f"checkpoint: {name} is {arrays[name].dtype}{list(arrays[name].shape)}, "
                    f"the model needs {array.dtype}{list(array.shape)}; use the same model"
                )
        self._copy(arrays, optimizer)

    def _copy(self, arrays: Mapping[str, np.ndarray], optimizer: bool) -> None:
        buffers = {"parameters": self.flat.weights}
        if optimizer:
            buffers.update({f"optimizer/{n}": a for n, a in self.optimizer.items()})
        for prefix, buffer in buffers.items():
            for place, name in enumerate(self.names):
                source = backend.to_device(arrays[f"{prefix}/{name}"], self.device)
                self.flat.view(buffer, place)[...] = source
        for name, tensor in self.fixed.items():
            tensor.value[...] = backend.to_device(arrays[f"layers/{name}"], self.device)
