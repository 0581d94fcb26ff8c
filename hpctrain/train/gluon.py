"""Gluon's names: its ``Trainer``, and where blocks, losses and batches are.

net = gluon.nn.Dense(10)
net.initialize(ctx=[cpu(0), cpu(1)])
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
parts = gluon.utils.split_and_load(batch, [cpu(0), cpu(1)])
with autograd.record():
    losses = [loss(net(x), y) for x, y in parts]
autograd.backward(losses)
trainer.step(batch_size)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpctrain import nn
from hpctrain.autograd import Tensor, as_tensor
from hpctrain.backend import Device
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.io.sampler import part
from hpctrain.nn import Block, HybridBlock, Parameter, ParameterDict, SymbolBlock, loss
from hpctrain.parallel import kvstore as stores
from hpctrain.parallel.kvstore import KVStore
from hpctrain.parallel.updater import Key, Updater
from hpctrain.symbol.arrays import load_arrays, save_arrays

__all__ = [
    "Block", "HybridBlock", "Parameter", "ParameterDict", "SymbolBlock", "Trainer", "loss",
    "nn", "split_and_load", "split_data", "utils",
]  # fmt: skip


class Trainer:
    """Updates parameters by their gradients, over devices and ranks.

    Parameters
    ----------
    params : mapping of str to Parameter, or sequence of Parameter
        ``block.collect_params()``; those without gradient are left alone.
    optimizer : str, Optimizer or Updater
    optimizer_params : mapping, optional
        Of an optimizer given by name.
    kvstore : str, KVStore or None
        Gradients are summed over the devices of each rank, and with a ``dist`` store over the
        ranks as well. None is ``device``.
    update_on_kvstore : bool, optional
        Whether the store makes the updates; then `allreduce_grads` and `update` cannot be
        called apart. Not, if None.

    Notes
    -----
    As in MXNet gradients are summed, never averaged, and ``step`` divides by its argument: on
    several ranks give it the rows of all ranks. With a ``dist`` store every method but
    ``set_learning_rate`` is collective from the first step on.
    """

    def __init__(
        self,
        params: Mapping[str, Parameter] | Sequence[Parameter],
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        kvstore: Any = "device",
        update_on_kvstore: bool | None = None,
    ) -> None:
        if not isinstance(params, Mapping):
            params = {f"{i}_{each.name}": each for i, each in enumerate(params)}
        self._params = {n: p for n, p in params.items() if p.grad_req != "null"}
        made = isinstance(optimizer, Updater)
        self.updater = optimizer if made else Updater(optimizer, **(optimizer_params or {}))
        for name, parameter in self._params.items():
            self.updater.lr_mult[name] = parameter.lr_mult
            self.updater.wd_mult[name] = parameter.wd_mult
        self._wanted, self._on_store = kvstore, bool(update_on_kvstore)
        self._store: KVStore | None = None
        self._pending: Path | None = None

    @property
    def learning_rate(self) -> float:
        """The rate of the next update."""
        return self.updater.learning_rate()

    def set_learning_rate(self, lr: float) -> None:
        """Set the rate of all updates from now on, on this rank: do the same on all.

        Raises
        ------
        ConfigError
            If there is a schedule.
        """
        if self.updater.schedule is not None:
            raise ConfigError("Trainer: the learning rate follows a schedule; change that")
        self.updater.lr = lr

    @property
    def _kv(self) -> KVStore:
        """Make the store, at the first step: before, shapes may be unknown."""
        if self._store is None:
            wanted = self._wanted or "device"
            self._store = stores.create(wanted) if isinstance(wanted, str) else wanted
            self._store.init(self._names, [p.data() for p in self._params.values()])
            self._store.pull(self._names, [p.list_data() for p in self._params.values()])
            if self._on_store:
                self._store.set_optimizer(self.updater)
            if self._pending is not None:
                self.load_states(self._pending)
        return self._store

    @property
    def _names(self) -> list[str]:
        return list(self._params)

    @property
    def _grads(self) -> list[list[Any]]:
        return [parameter.list_grad() for parameter in self._params.values()]

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Sum the gradients over devices and ranks, and update the parameters.

        Parameters
        ----------
        batch_size : int
            What gradients are divided by: the rows that the losses were summed over.
        ignore_stale_grad : bool
            Accepted, and without effect: a gradient that no backward pass has written since
            the last step is used again.
        """
        if not self._on_store:
            self.allreduce_grads()
            self.update(batch_size)
            return
        store = self._kv
        self.updater.scale = 1 / batch_size
        store.push(self._names, self._grads)
        store.pull(self._names, [p.list_data() for p in self._params.values()])

    def allreduce_grads(self) -> None:
        """Replace each gradient by its sum over devices and ranks; `update` follows."""
        self._refuse_on_store("allreduce_grads")
        self._kv.pushpull(self._names, self._grads)

    def update(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Update the parameters by gradients that are summed already; see `step`."""
        self._refuse_on_store("update")
        assert self._kv is not None
        self.updater.scale = 1 / batch_size
        for name, parameter in self._params.items():
            first, *others = parameter.list_data()
            self.updater(name, parameter.list_grad()[0], first)
            for other in others:
                first.copyto(other)

    def _refuse_on_store(self, what: str) -> None:
        if self._on_store:
            raise ConfigError(
                f"Trainer.{what}: the store makes the updates; call step, or make the trainer "
                "with update_on_kvstore=False"
            )

    def save_states(self, path: str | Path) -> None:
        """Write the optimizer's state, by rank 0; collective."""
        store = self._kv
        if store.rank == 0:
            save_arrays(path, self.updater.state())
        store.barrier()

    def load_states(self, path: str | Path) -> None:
        """Read the optimizer's state, on every rank; before the first step, at that step.

        Raises
        ------
        CheckpointError
            If it belongs to another model or optimizer.
        """
        if self._store is None:
            self._pending = Path(path)
            return
        weights: dict[Key, Tensor] = {name: p.data() for name, p in self._params.items()}
        self.updater.restore(load_arrays(path), weights)


def split_data(
    data: Any, num_slice: int, batch_axis: int = 0, even_split: bool = True
) -> list[Any]:
    """Cut an array into consecutive parts along the axis that counts samples.

    Parameters
    ----------
    data : Tensor or array_like
    num_slice : int
    batch_axis : int
    even_split : bool
        Refuse what does not divide; otherwise the first parts are one longer.
    """
    data = as_tensor(data)
    rows = data.shape[batch_axis]
    if rows < num_slice or (even_split and rows % num_slice):
        raise ShapeError(
            f"split_data: got {rows} rows for {num_slice} parts, needed "
            + ("a multiple of them; even_split=False allows others" if even_split else "more")
        )
    lead = (slice(None),) * batch_axis
    return [data[(*lead, part(rows, i, num_slice))] for i in range(num_slice)]


def split_and_load(
    data: Any,
    ctx_list: Device | Sequence[Device],
    batch_axis: int = 0,
    even_split: bool = True,
) -> list[Any]:
    """Cut an array as `split_data` does, one part for each device, and put it there."""
    devices = [ctx_list] if isinstance(ctx_list, Device) else list(ctx_list)
    parts = split_data(data, len(devices), batch_axis, even_split)
    return [each.as_in_context(device) for each, device in zip(parts, devices, strict=True)]


utils = SimpleNamespace(split_data=split_data, split_and_load=split_and_load)
