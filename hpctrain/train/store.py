"""A module's parameters in a key-value store: updates, state shared over ranks."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.optim import Optimizer
from hpctrain.parallel import kvstore as stores
from hpctrain.parallel.kvstore import KVStore
from hpctrain.parallel.updater import Updater
from hpctrain.symbol import Symbol
from hpctrain.symbol.arrays import load_arrays, save_arrays
from hpctrain.train.bound import Bound
from hpctrain.train.executors import Executors
from hpctrain.train.placed import PlacedExecutors

__all__ = ["ParameterStore", "make_updater"]


def make_updater(
    optimizer: Any, params: Any, symbol: Symbol, names: Sequence[str], rescale: float
) -> Updater:
    """Return the updater of a module's parameters.

    Parameters
    ----------
    optimizer : str, Optimizer or Updater
    params : mapping, or pairs
        Arguments of an optimizer given by name.
    symbol : Symbol
        Its variables' ``lr_mult`` and ``wd_mult`` count.
    names : sequence of str
        Of the parameters; without an attribute, only ``…_weight`` and ``…_gamma`` decay.
    rescale : float
        ``rescale_grad`` where ``params`` has none.
    """
    if isinstance(optimizer, Updater):
        return optimizer
    args = dict(params)
    if not isinstance(optimizer, Optimizer):
        args.setdefault("rescale_grad", rescale)
        updater = Updater(optimizer, **args)
    else:
        updater = Updater(optimizer)
    attrs = symbol.attr_dict()
    for name in names:
        own = attrs.get(name, {})
        decays = name.endswith(("_weight", "_gamma"))
        updater.lr_mult[name] = _number(name, own.get("__lr_mult__", "1"))
        updater.wd_mult[name] = _number(name, own.get("__wd_mult__", "1" if decays else "0"))
    return updater


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name}: got the factor {text[:80]!r}, needed a number") from None


class ParameterStore:
    """A store that holds the parameters of executors, and updates them.

    Parameters
    ----------
    executors : Executors or PlacedExecutors
    store : str, KVStore or None
        None is ``local``.
    updater : Updater
    names, aux : sequence of str
        Parameters that are trained, and state.

    Raises
    ------
    ConfigError
        If a store over ranks is wanted for parameters that are on different ranks.
    """

    def __init__(
        self,
        executors: Bound,
        store: Any,
        updater: Updater,
        names: Sequence[str],
        aux: Sequence[str],
    ) -> None:
        spread = isinstance(executors, PlacedExecutors)
        kind = store if store is None or isinstance(store, str) else store.type
        if spread and kind not in (None, *stores.LOCAL):
            raise ConfigError(
                f"init_optimizer: got the store {kind!r} with group2ctx over ranks, needed "
                "local; for copies of the model give each group several ranks"
            )
        self._everything = list(names)
        names, aux = executors.here(names), executors.here(aux)
        made = (
            stores.create(store or "local")
            if store is None or isinstance(store, str)
            else store
        )
        self.kv: KVStore = made
        self.updater = updater
        self._names, self._aux = list(names), list(aux)
        # State is averaged, not updated, so it has a store without an optimizer.
        self._state = KVStore(self.kv.type, self.kv.group)
        self.kv.init(self._names, [executors.args(name)[0] for name in names])
        self._state.init(self._aux, [executors.aux(name)[0] for name in aux])
        self.kv.set_optimizer(updater)
        self.pull(executors)
        self._state.pull(self._aux, [executors.aux(name) for name in aux])

    def update(self, executors: Bound) -> None:
        """Sum the gradients over devices and ranks, update, and copy to every device."""
        self.kv.push(self._names, [executors.grads(name) for name in self._names])
        self.pull(executors)

    def pull(self, executors: Bound) -> None:
        """Copy the stored parameters to every device."""
        self.kv.pull(self._names, [executors.args(name) for name in self._names])

    def replace(self, executors: Bound) -> None:
        """Take the executors' parameters in the place of the stored ones."""
        self.kv.replace(self._names, [executors.args(name)[0] for name in self._names])

    def average_state(self, executors: Bound) -> None:
        """Let all devices and ranks have the mean of their state; collective."""
        executors.meet(self._aux)
        tensors = [executors.aux(name) for name in self._aux]
        self._state.pushpull(self._aux, tensors)
        copies = executors.copies * self.kv.num_workers
        for tensor in (t for devices in tensors for t in devices):
            tensor.array[...] /= copies

    def add_ranks(self, sums: np.ndarray) -> None:
        """Sum an array over the ranks in place."""
        if self.kv.group is not None:
            self.kv.group.allreduce(sums)

    def save_states(self, executors: Bound, path: str | Path) -> None:
        """Write the optimizer's state, by rank 0; collective."""
        if isinstance(executors, Executors):
            self.kv.save_optimizer_states(path)
            return
        found = executors.collect(self.updater.state())
        if executors.places.group.rank == 0:
            save_arrays(path, {n: found[n] for n in self._in_order(found)})
        executors.places.group.barrier()

    def _in_order(self, arrays: Iterable[str]) -> list[str]:
        place = {name: i for i, name in enumerate(self._everything)}
        return sorted(arrays, key=lambda whole: place[whole.rpartition("/")[0]])

    def load_states(self, executors: Bound, path: str | Path) -> None:
        """Read the optimizer's state, on every rank what it has parameters of."""
        if isinstance(executors, Executors):
            self.kv.load_optimizer_states(path)
            return
        others = {*self._everything}.difference(self._names)
        arrays = {
            whole: array
            for whole, array in load_arrays(path).items()
            if whole.rpartition("/")[0] not in others
        }
        self.updater.restore(arrays, {name: executors.args(name)[0] for name in self._names})
