"""The executors of a module, one on each device, with a batch divided over them."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Spec, Tensor
from hpctrain.backend import Device
from hpctrain.errors import ConfigError
from hpctrain.io import DataBatch, DataDesc
from hpctrain.io.sampler import part
from hpctrain.ops import concat
from hpctrain.symbol import Symbol
from hpctrain.symbol.binding import zeros
from hpctrain.symbol.evaluate import infer
from hpctrain.symbol.executor import Executor

__all__ = ["Executors", "arrays_of", "described", "label_shapes_of"]


class Executors:
    """One executor for each device.

    Parameters
    ----------
    symbol : Symbol
    devices : sequence of Device
    data, label : sequence of DataDesc
        What a batch brings; others of the symbol's arguments are parameters.
    requests : mapping of str to str
        ``write``, ``add`` or ``null`` for each argument.
    seed : int
        Of random numbers.
    shared : Executors, optional
        Of the same devices: what is no data is taken from these, arrays and gradients, and so
        is working memory.

    Notes
    -----
    A batch of n rows gives each device n / k, the first ones one more where that does not
    divide; a device without rows does nothing, and its gradients are 0.
    """

    def __init__(  # noqa: PLR0913 (what a symbol is bound to)
        self,
        symbol: Symbol,
        devices: Sequence[Device],
        data: Sequence[DataDesc],
        label: Sequence[DataDesc],
        requests: Mapping[str, str],
        seed: int = 0,
        shared: "Executors | None" = None,
    ) -> None:
        self.data, self.label = list(data), list(label)
        self.devices = list(devices)
        shapes, types = described(symbol, data, label, len(self.devices))
        self.specs, outputs = infer(symbol.heads, shapes, types)
        self._outputs = [spec for spec in outputs if spec is not None]
        self.executors: list[Executor] = [
            symbol.simple_bind(device, dict(requests), types, seed, **shapes)
            if shared is None
            else self._beside(shared.executors[place], symbol, requests, seed)
            for place, device in enumerate(devices)
        ]
        self._requests = requests
        # Gradients of a shared module that this symbol has no part in.
        others = [] if shared is None else zip(self.executors, shared.executors, strict=True)
        self._absent = [
            gradient
            for mine, other in others
            for name, gradient in other.grad_dict.items()
            if name not in mine.arg_dict and other.request(name) == "write"
        ]
        self._active: list[Executor] = []

    @property
    def rows(self) -> int:
        """Rows of a batch on this rank."""
        return int(self.data[0].shape[self.data[0].batch_axis])

    @property
    def copies(self) -> int:
        """How many values there are of a parameter on this rank."""
        return len(self.executors)

    @property
    def writes(self) -> bool:
        """Whether this rank writes what all have: who has a store knows."""
        return True

    def barrier(self) -> None:
        """Wait for nobody."""

    def here(self, names: Sequence[str]) -> list[str]:
        """Return those of the names that this rank has arrays of: all."""
        return list(names)

    def _beside(
        self, other: Executor, symbol: Symbol, requests: Mapping[str, str], seed: int
    ) -> Executor:
        """Bind to the parameters and state of another executor."""
        brought = {desc.name for desc in (*self.data, *self.label)}
        names = [name for name in symbol.list_arguments() if name not in brought]
        states = symbol.list_auxiliary_states()
        for name in (*names, *states):
            known = other.arg_dict.get(name, other.aux_dict.get(name))
            if known is None or known.spec != self.specs[name]:
                raise ConfigError(
                    f"bind: got {name!r} of {self.specs[name]}, but the shared module has "
                    f"{'none' if known is None else known.spec}"
                )
        fresh = {name: zeros(self.specs[name], other.ctx) for name in brought & {*self.specs}}
        args = {**fresh, **{name: other.arg_dict[name] for name in names}}
        grads = {name: other.grad_dict[name] for name in names if name in other.grad_dict}
        grads |= {
            n: zeros(t.spec, other.ctx) for n, t in fresh.items() if requests[n] != "null"
        }
        aux = {name: other.aux_dict[name] for name in states}
        return symbol.bind(other.ctx, args, grads, dict(requests), aux, seed, other)

    def forward(self, batch: DataBatch, is_train: bool, row: int = 0) -> None:
        """Compute the outputs of a batch.

        Parameters
        ----------
        batch : DataBatch
        is_train : bool
        row : int
            The batch's first row in the batch of all ranks.
        """
        given = arrays_of(batch, self.data, self.label, self.specs)
        self._active = []
        for executor, rows in zip(
            self.executors, self._slices(len(batch.data[0])), strict=True
        ):
            if rows.stop > rows.start:
                executor.set_row(row + rows.start)
                parts = {name: array[rows] for name, array in given.items()}
                executor.forward(is_train, **parts)
                self._active.append(executor)
            elif is_train:
                executor.skip()

    def _slices(self, rows: int) -> list[slice]:
        return [part(rows, i, len(self.devices)) for i in range(len(self.devices))]

    def backward(self, out_grads: Sequence[Tensor] | None = None) -> None:
        """Compute the gradients of the last batch on each device."""
        for gradient in self._absent:
            gradient.array[...] = 0
        start = 0
        for executor in self.executors:
            if executor not in self._active:
                for gradient in executor.grad_dict.values():
                    gradient.array[...] = 0
                continue
            stop = start + len(executor.outputs[0])
            parts = None
            if out_grads is not None:
                home = executor.ctx
                parts = [Tensor(g.array[start:stop], device=home) for g in out_grads]
            executor.backward(parts)
            start = stop

    def outputs(self) -> list[Any]:
        """Return the outputs of the last batch, joined on the first device."""
        if not self._active:
            return [_empty(spec, self.devices[0]) for spec in self._outputs]
        return self._joined([executor.outputs for executor in self._active])

    def input_grads(self) -> list[Any]:
        """Return the gradients of the data of the last batch, joined on the first device."""
        names = [desc.name for desc in self.data]
        return self._joined([[e.grad_dict[n] for n in names] for e in self._active])

    def _joined(self, parts: Sequence[Sequence[Any]]) -> list[Any]:
        home = self.devices[0]
        return [
            concat([t.detach().as_in_context(home) for t in column]) if len(column) > 1
            else column[0].detach()
            for column in zip(*parts, strict=True)
        ]  # fmt: skip

    def measure(self, metric: Any, update: Callable[[Sequence[Any]], None]) -> None:
        """Let ``update`` add the last outputs to a metric."""
        update(self.outputs())

    def meet(self, states: Sequence[str]) -> None:
        """Do nothing: there are no copies on other ranks but those of the store."""

    def host(
        self, names: Sequence[str], states: Sequence[str], root: int | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return copies of parameters and state; state is the mean over the devices."""
        args = {name: self.args(name)[0].asnumpy().copy() for name in names}
        return args, {name: _mean_of(self.aux(name)) for name in states}

    def grads(self, name: str) -> list[Any]:
        """Return the gradients of a parameter, one for each device."""
        return [executor.grad_dict[name] for executor in self.executors]

    def args(self, name: str) -> list[Any]:
        """Return a parameter on each device."""
        return [executor.arg_dict[name] for executor in self.executors]

    def aux(self, name: str) -> list[Any]:
        """Return a state on each device."""
        return [executor.aux_dict[name] for executor in self.executors]


def described(
    symbol: Symbol, data: Sequence[DataDesc], label: Sequence[DataDesc], parts: int = 1
) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Return shapes and dtypes of the arguments that a batch brings, to be cut in ``parts``.

    Raises
    ------
    ConfigError
        If the symbol has no such argument, or rows are not first where they are to be divided.
    """
    arguments = symbol.list_arguments()
    unknown = [d.name for d in data if d.name not in arguments]
    if unknown:
        raise ConfigError(
            f"bind: the symbol has no argument {unknown[0]!r}, only {', '.join(arguments)}"
        )
    if parts > 1 and any(desc.batch_axis for desc in data):
        raise ConfigError(
            f"bind: got the layout {data[0].layout!r} for several devices, needed rows "
            "first, to divide them"
        )
    every = [*data, *label]
    shapes = {d.name: tuple(d.shape) for d in every if d.name in arguments}
    return shapes, {d.name: d.dtype for d in every}


def arrays_of(
    batch: DataBatch, data: Sequence[DataDesc], label: Sequence[DataDesc], known: Container[str]
) -> dict[str, Any]:
    """Return arrays by argument, as far as they are known; labels not there are zeros."""
    rows = len(batch.data[0])
    pairs = [*zip(data, batch.data, strict=True)]
    pairs += [*zip(label, batch.label or [], strict=bool(batch.label))]
    found = {desc.name: value.array for desc, value in pairs if desc.name in known}
    for desc in label:
        if desc.name not in found and desc.name in known:
            found[desc.name] = np.zeros((rows, *desc.shape[1:]), np.float32)
    return found


def _mean_of(tensors: Sequence[Any]) -> np.ndarray:
    """Return the mean over the devices, in the order of these."""
    total: np.ndarray = tensors[0].asnumpy().copy()
    for other in tensors[1:]:
        total += other.asnumpy()
    total /= len(tensors)
    return total


def _empty(spec: Spec, device: Device) -> Tensor:
    return Tensor(np.empty((0, *spec.shape[1:]), spec.dtype), device=device)


def label_shapes_of(
    symbol: Symbol, data: Sequence[DataDesc], names: Sequence[str]
) -> list[DataDesc]:
    """Return the labels, with the shapes that follow from those of the data."""
    found = symbol.infer_shape_partial(**{desc.name: desc.shape for desc in data})[0]
    pairs = zip(symbol.list_arguments(), found, strict=True)
    return [DataDesc(name, s) for name, s in pairs if name in names and s is not None]
