"""The share of one rank in a module whose groups are on several ranks.

Every rank is given the same batch and takes what its groups read of it. A rank has the
parameters of its groups, their gradients and state, and what the optimizer keeps for them;
values and cotangents travel between the ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Spec, Tensor
from hpctrain.backend import Device, to_host
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.graph.pool import Pool
from hpctrain.graph.recent import Recent
from hpctrain.io import DataBatch, DataDesc
from hpctrain.parallel.scattered_symbol import PlacedSymbol
from hpctrain.symbol import Symbol
from hpctrain.symbol.binding import zeros
from hpctrain.symbol.evaluate import infer
from hpctrain.symbol.placing import placed
from hpctrain.symbol.streams import make_stream
from hpctrain.train.executors import arrays_of, described
from hpctrain.train.metrics import MetricSet
from hpctrain.train.placed_kind import Kind, copied
from hpctrain.train.places import Places, gathered

__all__ = ["PlacedExecutors"]


class PlacedExecutors:
    """One executor whose parts are on several ranks; does what `Executors` does.

    Parameters
    ----------
    symbol : Symbol
    places : Places
    device : Device
        Of this rank.
    data, label : sequence of DataDesc
        Of a batch, the same on all ranks.
    requests : mapping of str to str
    seed : int
    shared : PlacedExecutors, optional
        See `Executors`.

    Notes
    -----
    Making it is collective, and so is every method that says so. The ranks must make the same
    calls of `forward` and `backward`, with batches of the same shapes.
    """

    def __init__(  # noqa: PLR0913 (what a symbol is bound to)
        self,
        symbol: Symbol,
        places: Places,
        device: Device,
        data: Sequence[DataDesc],
        label: Sequence[DataDesc],
        requests: Mapping[str, str],
        seed: int = 0,
        shared: "PlacedExecutors | None" = None,
    ) -> None:
        self.data, self.label, self.places = list(data), list(label), places
        self._device, self._requests = device, dict(requests)
        shapes, types = described(symbol, data, label, places.copies)
        self.specs, outputs = infer(symbol.heads, shapes, types)
        self._outputs = [spec for spec in outputs if spec is not None]
        self._fed = [name for name in shapes if name in self.specs]
        self._symbol = PlacedSymbol(placed(symbol.heads, places.by_group, places.rest))
        if shared is None:
            places.join({"symbol": symbol.tojson(), "bound": f"{shapes} {requests} {seed}"})
        self._pool: Pool = Pool() if shared is None else shared._pool
        self._args, self._grads, self._aux = self._arrays(shared)
        self._streams = {
            name: make_stream(seed, name, device) for name in self._mine(self._symbol.drawing)
        }
        self._absent = [] if shared is None else [
            gradient for name, gradient in shared._grads.items()
            if name not in self._symbol.arguments and shared._requests[name] == "write"
        ]  # fmt: skip
        self._kinds: Recent[Kind] = Recent()
        self._kind: Kind | None = None  # of the last forward pass
        self._values: dict[int, Any] = {}
        self._input_grads: dict[str, Any] = {}

    def _mine(self, where: Mapping[str, int]) -> list[str]:
        """Return the names whose place is here."""
        if self.places.copy is None:
            return []
        ranks, rank = self.places.ranks, self.places.group.rank
        return [name for name, place in where.items() if ranks[place] == rank]

    def _arrays(self, shared: "PlacedExecutors | None") -> tuple[dict[str, Any], ...]:
        """Return the parameters, gradients and state that are here."""
        names = [name for name in self._mine(self._symbol.arguments) if name not in self._fed]
        states = self._mine(self._symbol.states)
        if shared is not None:
            known = {**shared._args, **shared._aux}
            for name in (*names, *states):
                if name not in known or known[name].spec != self.specs[name]:
                    raise ConfigError(
                        f"bind: got {name!r} of {self.specs[name]}, but the shared module has "
                        f"{known[name].spec if name in known else 'none on this rank'}"
                    )
            grads = {name: shared._grads[name] for name in names if name in shared._grads}
            return {n: known[n] for n in names}, grads, {n: known[n] for n in states}
        wanted = [name for name in names if self._requests[name] != "null"]
        kinds = (names, wanted, states)
        return tuple({n: zeros(self.specs[n], self._device) for n in kind} for kind in kinds)

    @property
    def rows(self) -> int:
        """Rows of a batch, of all copies together."""
        return int(self.data[0].shape[self.data[0].batch_axis])

    @property
    def copies(self) -> int:
        """How many values there are of a parameter on this rank."""
        return 1

    @property
    def writes(self) -> bool:
        """Whether this rank writes what all have: rank 0 does."""
        return self.places.group.rank == 0

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.places.group.barrier()

    def here(self, names: Sequence[str]) -> list[str]:
        """Return those of the names that this rank has arrays of."""
        return [name for name in names if name in self._args or name in self._aux]

    def forward(self, batch: DataBatch, is_train: bool, row: int = 0) -> None:
        """Compute the outputs of a batch; returns when this rank's part is done."""
        given = arrays_of(batch, self.data, self.label, self.specs)
        rows = self.places.rows(len(batch.data[0]))
        whole = self.places.copies == 1
        if not whole and rows.stop <= rows.start:
            self._skip(is_train)
            return
        if not whole:
            given = {name: array[rows] for name, array in given.items()}
        kind = self._kind_of({n: tuple(a.shape) for n, a in given.items()}, is_train)
        for stream in self._streams.values():
            stream.array[2] = row + (0 if whole else rows.start)
        inputs = kind.passes.inputs
        self._values = {
            inputs[name]: copied(array, self.specs[name], self._device)
            for name, array in given.items() if inputs[name] in kind.reads
        }  # fmt: skip
        self._values |= {inputs[n]: tensor.array for n, tensor in self._args.items()}
        self._kind = kind
        self._values |= kind.forward.run(self._values, self.places.wire)

    def _skip(self, is_train: bool) -> None:
        """Let a batch go by of which this copy has no row; random numbers stay in step."""
        self._kind, self._values = None, {}
        for stream in self._streams.values() if is_train else ():
            stream.array[1] += np.uint64(1)

    def _kind_of(self, shapes: Mapping[str, tuple[int, ...]], is_train: bool) -> Kind:
        key = (tuple(sorted(shapes.items())), is_train)
        return self._kinds.get(key, lambda: self._bound(shapes, is_train))

    def _bound(self, shapes: Mapping[str, tuple[int, ...]], is_train: bool) -> Kind:
        """Capture and divide for a kind of batch; every rank does, and asks nobody."""
        fed = {name: Spec(shape, self.specs[name].dtype) for name, shape in shapes.items()}
        wanted = [n for n, request in self._requests.items() if request != "null" and is_train]
        ranks, rank = self.places.ranks, self.places.group.rank
        passes = self._symbol.passes(
            {**self.specs, **fed}, self._fed, wanted, is_train, ranks, rank, self._device
        )
        return Kind(passes, {**self._aux, **self._streams}, self._device, self._pool)

    def backward(self, out_grads: Sequence[Tensor] | None = None) -> None:
        """Compute the gradients of the last batch; collective among copies, which it sums."""
        for gradient in self._absent:
            gradient.array[...] = 0
        found: dict[str, Any] = {}
        kind = self._kind
        if kind is not None:
            if kind.backward is None:
                raise ShapeError(
                    "backward: the outputs do not depend on an argument with a gradient, or "
                    "forward was not called with is_train=True"
                )
            parts = None if out_grads is None else [self._rows_of(g) for g in out_grads]
            given = {**self._values, **kind.cotangents(parts)}
            results = kind.backward.run(given, self.places.wire)
            gradients = kind.passes.gradients
            found = {n: results[v] for n, v in gradients.items() if v in results}
        own = {name: found.pop(name) for name in self._fed if name in found}
        for name, array in self._input_grads.items():
            if self._requests[name] == "add" and name in own and own[name].shape == array.shape:
                own[name] = array + own[name]
        self._input_grads = own
        self._take({n: found.get(n) for n in self._grads})

    def _rows_of(self, tensor: Tensor) -> Any:
        """Return the rows of this copy."""
        whole = self.places.copies == 1
        return tensor.array if whole else tensor.array[self.places.rows(len(tensor))]

    def _take(self, found: Mapping[str, Any]) -> None:
        """Sum gradients over the copies, and write or add them; None stands for zeros."""
        fresh = {
            name: zeros(self._grads[name].spec, self._device).array if array is None else array
            for name, array in found.items()
        }
        self.places.add(list(fresh.values()))
        for name, array in fresh.items():
            if self._requests[name] == "add":
                self._grads[name].array[...] += array
            else:
                self._grads[name].array[...] = array

    def meet(self, states: Sequence[str]) -> None:
        """Let all copies have the mean of the state; collective."""
        arrays = [self._aux[name].array for name in states]
        self.places.add(arrays)
        for array in arrays:
            array /= self.places.copies

    def outputs(self) -> list[Any]:
        """Return the outputs of the last batch on every rank; collective."""
        mine = self._made() if self._kind is not None else {}
        named = {str(i): array for i, array in mine.items()}
        found = self.places.joined(named, {str(i): s for i, s in enumerate(self._outputs)})
        return [Tensor(array, device=self._device) for array in found]

    def _made(self) -> dict[int, Any]:
        """Return the outputs of this copy that are made here."""
        assert self._kind is not None
        rank, rows = self.places.group.rank, enumerate(self._kind.passes.outputs)
        return {i: self._values[value] for i, (value, where, _) in rows if where == rank}

    def measure(self, metric: Any, update: Callable[[Sequence[Any]], None]) -> None:
        """Let ``update`` add the last outputs to a metric; collective.

        Where one rank makes all outputs, only sums and counts travel.
        """
        group = self.places.group
        homes = set() if self._kind is None else {w for _, w, _ in self._kind.passes.outputs}
        if self.places.copies > 1 or len(homes) != 1:
            update(self.outputs())
            return
        (home,) = homes
        every = metric if isinstance(metric, MetricSet) else MetricSet([metric])
        if group.rank == home:
            update([Tensor(array, device=self._device) for array in self._made().values()])
        sums = every.vector()
        group.bcast(sums, home)
        every.from_vector(sums)

    def input_grads(self) -> list[Any]:
        """Return the gradients of the data of the last batch on every rank; collective."""
        specs = {desc.name: self.specs[desc.name] for desc in self.data}
        found = self.places.joined(self._input_grads, specs)
        return [Tensor(array, device=self._device) for array in found]

    def host(
        self, names: Sequence[str], states: Sequence[str], root: int | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return parameters and state on every rank, or on one; collective."""
        mean = [self._aux[name].array.copy() for name in self._aux]
        self.places.add(mean)
        own = dict(zip(self._aux, mean, strict=True))
        for array in own.values():
            array /= self.places.copies
        own |= {name: tensor.array for name, tensor in self._args.items()}
        found = self.collect({n: to_host(a) for n, a in own.items()}, root)
        if not found:
            return {}, {}
        return {n: found[n] for n in names}, {n: found[n] for n in states}

    def collect(
        self, arrays: Mapping[str, np.ndarray], root: int | None = 0
    ) -> dict[str, np.ndarray]:
        """Return what the ranks of the first copy have, on every rank or on one; collective."""
        return gathered(self.places.group, arrays if self.places.copy == 0 else {}, root)

    def grads(self, name: str) -> list[Any]:
        """Return the gradient of a parameter, summed over the copies; none if not here."""
        return [self._grads[name]] if name in self._grads else []

    def args(self, name: str) -> list[Any]:
        """Return a parameter; none if it is not here."""
        return [self._args[name]] if name in self._args else []

    def aux(self, name: str) -> list[Any]:
        """Return a state; none if it is not here."""
        return [self._aux[name]] if name in self._aux else []
