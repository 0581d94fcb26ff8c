"""A key-value store: sums of arrays over devices, and over ranks by allreduce."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.autograd import Tensor
from hpctrain.backend import module_of, to_host
from hpctrain.comm.agree import agree
from hpctrain.comm.group import Group
from hpctrain.errors import ConfigError
from hpctrain.optim import Optimizer
from hpctrain.parallel.keyed import all_of, buckets, paired, summed
from hpctrain.parallel.updater import Key, Updater
from hpctrain.symbol.arrays import load_arrays, save_arrays

__all__ = ["KVStore", "Update", "rows_into"]

Update = Callable[[Key, Tensor, Tensor], None]


class KVStore:
    """A store; made by `create`.

    Parameters
    ----------
    kind : str
    group : Group, optional
        The ranks to sum over. Calls with it are collective: every rank makes the same ones.

    Notes
    -----
    Every method that takes a key takes a list of keys, with a list of values; many keys in
    one call travel together. ``priority`` is accepted, and without effect: arrays travel in
    the order of the calls, which is the same on all ranks.
    """

    def __init__(self, kind: str, group: Group | None = None) -> None:
        self.type = kind
        self.group = group
        self.updater: Update | None = None
        self._values: dict[Key, Tensor] = {}

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return 0 if self.group is None else self.group.rank

    @property
    def num_workers(self) -> int:
        """How many ranks there are."""
        return 1 if self.group is None else self.group.size

    def init(self, key: Any, value: Any) -> None:
        """Give keys their first values, those of rank 0.

        Raises
        ------
        ConfigError
            If a key is there already, numbers and names are mixed, or keys, shapes or dtypes
            differ over the ranks.
        """
        pairs = [(k, all_of(v)[0]) for k, v in paired(key, value)]
        for name, _ in pairs:
            self._check_new(name, [k for k, _ in pairs])
        if self.group is not None:
            agree(self.group, {f"kvstore key {k}": str(v.spec) for k, v in pairs})
        copies = [Tensor(v.array.copy(), device=v.device) for _, v in pairs]
        self._values.update(zip((k for k, _ in pairs), copies, strict=True))
        if self.group is not None:
            for tensor in copies:
                self.group.bcast(tensor.array, 0)

    def _check_new(self, key: Key, together: Sequence[Key]) -> None:
        if not isinstance(key, str | int):
            raise ConfigError(f"kvstore: got the key {key!r}, needed text or a whole number")
        if key in self._values or list(together).count(key) > 1:
            raise ConfigError(f"kvstore: key {key!r} was initialised before")
        known = next(iter([*self._values, *together]))
        if isinstance(known, str) != isinstance(key, str):
            raise ConfigError(
                f"kvstore: got the keys {known!r} and {key!r}, needed all text or all numbers"
            )

    def _value(self, key: Key) -> Tensor:
        if key not in self._values:
            raise ConfigError(f"kvstore: key {key!r} is not there; init it first")
        return self._values[key]

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sum values over devices and ranks, and update the stored values with the sums.

        Parameters
        ----------
        key : str or int, or a list of these
        value : Tensor, or list of Tensor (one for each device), or a list of these
        priority : int
            Without effect.

        Notes
        -----
        With an optimizer, or an updater, that is called with the sum; otherwise the sum
        takes the place of the stored value. Returns when this is done.
        """
        pairs = [(k, self._value(k), all_of(v)) for k, v in paired(key, value)]
        sums = [summed(values, stored) for _, stored, values in pairs]
        self._add_ranks([t.array for t in sums])
        for (name, stored, _), total in zip(pairs, sums, strict=True):
            if self.updater is None:
                stored.array[...] = total.array
            else:
                self.updater(name, total, stored)

    def pull(self, key: Any, out: Any = None, priority: int = 0, **_: Any) -> None:
        """Copy stored values into ``out``: a tensor, or one for each device, for each key."""
        for name, targets in paired(key, out):
            stored = self._value(name)
            for target in all_of(targets):
                stored.copyto(target)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push ``value``, then pull into ``out``, which is ``value`` if None.

        Without an optimizer the stored values stay as they are; ``out`` gets the sums.
        """
        out = value if out is None else out
        if self.updater is not None:
            self.push(key, value, priority)
            self.pull(key, out, priority)
            return
        pairs = [(self._value(k), all_of(v)) for k, v in paired(key, value)]
        sums = [summed(values, stored) for stored, values in pairs]
        self._add_ranks([t.array for t in sums])
        for total, (_, targets) in zip(sums, paired(key, out), strict=True):
            for target in all_of(targets):
                total.copyto(target)

    def replace(self, key: Any, value: Any) -> None:
        """Let keys have other values, those of rank 0; nothing is updated."""
        for name, tensor in paired(key, value):
            stored = self._value(name)
            all_of(tensor)[0].copyto(stored)
            if self.group is not None:
                self.group.bcast(stored.array, 0)

    def row_sparse_pull(
        self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None
    ) -> None:
        """Copy some rows of stored values; only these travel.

        Parameters
        ----------
        key, out : as of `pull`
            A tensor of the stored shape gets the rows in their places and zeros elsewhere; one
            with a row for each number gets them in that order.
        row_ids : array of integers, or one for each key
            Numbers of rows; may repeat.
        """
        for (name, targets), ids in zip(paired(key, out), _listed(key, row_ids), strict=True):
            numbers = checked_ids(ids, self._value(name))
            rows = self._rows(name, numbers)
            for target in all_of(targets):
                rows_into(target, ids, numbers, rows)

    def _rows(self, key: Key, numbers: np.ndarray) -> np.ndarray:
        """Return rows by their ascending numbers."""
        return to_host(self._value(key).array)[numbers]

    def set_gradient_compression(self, params: Mapping[str, Any]) -> None:
        """Refuse: only what goes to servers is compressed.

        Raises
        ------
        ConfigError
        """
        raise ConfigError(
            f"kvstore: got compression {dict(params)} for {self.type}, needed a store with "
            "servers; leave it out, or see the setting exchange.wire of runs"
        )

    def close(self) -> None:
        """End the use of the store; collective if it has servers."""

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Init with ``value``, then pull into ``out``."""
        self.init(key, value)
        self.pull(key, out, priority)

    def _add_ranks(self, arrays: Sequence[Any]) -> None:
        """Sum arrays over the ranks in place, many small ones in one message."""
        if self.group is None or self.group.size == 1:
            return
        for bucket in buckets(arrays):
            if len(bucket) == 1:
                self.group.allreduce(bucket[0])
                continue
            xp = module_of(bucket[0])
            packed = xp.concatenate([array.reshape(-1) for array in bucket])
            self.group.allreduce(packed)
            start = 0
            for array in bucket:
                array[...] = packed[start : start + array.size].reshape(array.shape)
                start += array.size

    def set_optimizer(self, optimizer: str | Optimizer | Updater, **args: Any) -> None:
        """Let every push make an update of the stored value, the same on every rank.

        Raises
        ------
        ConfigError
            If the optimizers differ over the ranks.
        """
        updater = optimizer if isinstance(optimizer, Updater) else Updater(optimizer, **args)
        if self.group is not None:
            agree(self.group, {"kvstore optimizer": repr(updater.optimizer)})
        self.updater = updater

    def set_updater(self, updater: Update) -> None:
        """Let ``updater(key, sum, stored)`` change the stored value in place at every push."""
        self.updater = updater

    def is_capable(self, what: str) -> bool:
        """Return whether the store can run an ``optimizer``."""
        return what.lower() == "optimizer"

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.group is not None:
            self.group.barrier()

    def save_optimizer_states(self, path: str | Path, dump_optimizer: bool = False) -> None:
        """Write the optimizer's state to a file, by rank 0; collective.

        Parameters
        ----------
        path : path
            On a file system that rank 0 sees; it appears whole or not at all.
        dump_optimizer : bool
            Accepted, and without effect: the file holds state, not the optimizer.
        """
        if self.rank == 0:
            save_arrays(path, self._optimizer().state())
        self.barrier()

    def load_optimizer_states(self, path: str | Path) -> None:
        """Restore the optimizer's state from a file that every rank reads."""
        self._optimizer().restore(load_arrays(path), self._values)

    def _optimizer(self) -> Updater:
        if not isinstance(self.updater, Updater):
            raise ConfigError("kvstore: there is no optimizer; call set_optimizer first")
        return self.updater


def _listed(key: Any, value: Any) -> list[Any]:
    """Return one value for each key."""
    return list(value) if isinstance(key, list | tuple) else [value]


def checked_ids(ids: Any, stored: Tensor) -> np.ndarray:
    """Return row numbers of a value, each once, ascending.

    Raises
    ------
    ConfigError
        If they are no whole numbers, or outside: floats cannot tell rows above 2**24 apart.
    """
    numbers = np.asarray(ids.asnumpy() if isinstance(ids, Tensor) else ids).reshape(-1)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise ConfigError(
            f"kvstore: got row numbers of {numbers.dtype}, needed integers, which are exact"
        )
    found = np.unique(numbers).astype(np.int64)
    if found.size and not 0 <= found[0] <= found[-1] < stored.shape[0]:
        raise ConfigError(
            f"kvstore: got rows {found[0]} to {found[-1]}, needed 0 to {stored.shape[0] - 1}"
        )
    return found


def rows_into(target: Tensor, ids: Any, numbers: np.ndarray, rows: np.ndarray) -> None:
    """Write rows into a tensor of all rows, or of those that were asked for."""
    asked = np.asarray(ids.asnumpy() if isinstance(ids, Tensor) else ids).reshape(-1)
    xp = module_of(target.array)
    if target.shape[0] == asked.size and target.shape[0] <= numbers.max(initial=-1):
        target.array[...] = xp.asarray(rows[np.searchsorted(numbers, asked)])
        return
    target.array[...] = 0
    target.array[numbers] = xp.asarray(rows)
