"""MXNet's key-value stores: sums of arrays over devices, and over ranks by allreduce.

    kv = kvstore.create("dist_sync")
    kv.init("w", weight)            # rank 0's value, on every rank
    kv.push("w", grads)             # a list with one gradient for each device of this rank
    kv.pull("w", out=weights)       # the sum, or the weight that the optimizer made of it

There is no server: every rank keeps the value and makes the same update of it. What the
names promise holds all the same. A push adds up over devices and ranks, it does not average;
it is a round of its own, so that two pushes in a row are two rounds, and a pull gives what
the last one left. Keys are compared over the ranks by name, not by the order of counters.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpctrain.autograd import Tensor
from hpctrain.backend import module_of
from hpctrain.comm import world
from hpctrain.comm.agree import agree
from hpctrain.comm.group import Group
from hpctrain.errors import ConfigError
from hpctrain.optim import Optimizer
from hpctrain.parallel.keyed import all_of, buckets, paired, summed
from hpctrain.parallel.updater import Key, Updater
from hpctrain.symbol.arrays import load_arrays, save_arrays

__all__ = ["KVStore", "create"]

LOCAL = ("local", "device", "nccl")
ALLREDUCE = ("dist_sync", "dist_device_sync", "dist_sync_device", "allreduce", "horovod")

Update = Callable[[Key, Tensor, Tensor], None]


@functools.cache
def _world() -> world.World:
    """Start MPI once for all stores of this process that were given no group."""
    return world.start()


def create(name: str = "local", group: Group | None = None) -> "KVStore":
    """Make a store.

    Parameters
    ----------
    name : str
        ``local``, ``device`` or ``nccl``: sums over the devices of this rank.
        ``dist_sync``, ``dist_device_sync``, ``dist_sync_device``, ``allreduce`` or
        ``horovod``: over all ranks as well, by allreduce; collective.
    group : Group, optional
        The ranks; all of them, with MPI started here, if None.

    Raises
    ------
    ConfigError
        If there is no store of that name.
    """
    key = name.lower() if isinstance(name, str) else name
    if key in LOCAL:
        return KVStore(key)
    if key in ALLREDUCE:
        return KVStore(key, _world().group.dup() if group is None else group)
    why = ""
    if isinstance(key, str) and (key.startswith("dist") or key == "p3"):
        why = "; stores with a parameter server are not there yet"
    raise ConfigError(
        f"kvstore: got {name!r}, needed one of {', '.join(LOCAL + ALLREDUCE)}{why}"
    )


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
