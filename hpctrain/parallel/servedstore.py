"""Key-value stores whose values lie on servers: ``dist_sync``, ``dist_async``, ``p3``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.autograd import Tensor
from hpctrain.backend import module_of, to_host
from hpctrain.comm.compress import codec
from hpctrain.comm.group import Group
from hpctrain.comm.letter import Header, Op
from hpctrain.comm.post import Post
from hpctrain.comm.words import say
from hpctrain.errors import ConfigError
from hpctrain.optim import Optimizer
from hpctrain.parallel.keyed import all_of, paired, summed
from hpctrain.parallel.keylinks import KeyLinks
from hpctrain.parallel.keyserver import KEEP
from hpctrain.parallel.store import KVStore, Update, checked_ids
from hpctrain.parallel.updater import Key, Updater
from hpctrain.symbol.arrays import load_arrays, save_arrays

__all__ = ["ServedStore"]


class ServedStore(KVStore):
    """A store of a worker; made by `hpctrain.parallel.kvstore.create`.

    Parameters
    ----------
    kind : str
    group : Group
        The workers.
    post : Post
        Over all ranks.
    servers : int
    sync : bool
        Whether a push waits for those of all workers.

    Notes
    -----
    A learning rate goes with every push, and counts the pushes of its worker: changes act at
    once, and with n workers a schedule does not run n times as fast. Other settings of the
    optimizer are told anew when they have changed, on all workers alike.
    """

    def __init__(self, kind: str, group: Group, post: Post, servers: int, sync: bool) -> None:
        super().__init__(kind, group)
        self._workers, self._sync = group, sync
        self._links = KeyLinks(post, servers, group.rank == 0)
        self._pushed: dict[Key, int] = {}
        self._told: Any = None
        self._open = True

    def init(self, key: Any, value: Any) -> None:
        """Give keys their first values, those of the first worker; see `KVStore.init`."""
        super().init(key, value)
        names = [name for name, _ in paired(key, value)]
        self._links.add({name: self._values[name] for name in names})
        self._pushed.update(dict.fromkeys(names, 0))
        self._workers.barrier()  # nobody pulls what is not there

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Send sums over the devices of this rank to the servers; see `KVStore.push`.

        Raises
        ------
        ConfigError
            Without an optimizer, if the servers do not wait for all workers.
        """
        self._check_optimizer()
        for name, values in paired(key, value):
            self._push(name, summed(all_of(values), self._value(name)), 0)

    def _check_optimizer(self) -> None:
        if self.updater is None and not self._sync:
            raise ConfigError(
                f"kvstore: {self.type} updates for each push at once and has no optimizer; "
                "call set_optimizer before the first push"
            )
        if self.updater is not None and self._settings() != self._told:
            self._tell_optimizer()

    def _push(self, name: Key, total: Tensor, flags: int) -> None:
        flat = to_host(total.array).reshape(-1)
        header = self._header(name, flat.dtype.char, flags)
        self._pushed[name] += 1
        self._links.push(name, flat, header)

    def _header(self, name: Key, kind: str, flags: int) -> Header:
        lr, scale, count = 0.0, 1.0, self._pushed[name]
        if isinstance(self.updater, Updater):
            lr = self.updater.learning_rate(count) * self.updater.lr_mult.get(name, 1.0)
            scale = self.updater.scale
        return Header(Op.PUSH, version=count, dtype=kind, flags=flags, share=scale, scale=lr)

    def pull(self, key: Any, out: Any = None, priority: int = 0, **_: Any) -> None:
        """Copy the servers' values into ``out``; they follow this rank's last push."""
        for name, targets in paired(key, out):
            self._value(name)
            self._give(name, self._links.fetch(name, self._pushed[name]), targets)

    def _give(self, name: Key, found: Any, targets: Any) -> None:
        stored = self._value(name)
        tensor = Tensor(module_of(stored.array).asarray(found), device=stored.device)
        for target in all_of(targets):
            tensor.copyto(target)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Push, then pull; without an optimizer ``out`` gets sums, and nothing is stored."""
        self._check_optimizer()
        out = value if out is None else out
        if self.updater is not None:
            self.push(key, value, priority)
            self.pull(key, out, priority)
            return
        for (name, values), (_, targets) in zip(
            paired(key, value), paired(key, out), strict=True
        ):
            total = summed(all_of(values), self._value(name))
            rooms = self._links.expect(name)
            self._push(name, total, KEEP)
            self._give(name, self._links.collect(name, rooms), targets)

    def replace(self, key: Any, value: Any) -> None:
        """Let keys have other values, those of the first worker; nothing is updated."""
        super().replace(key, value)
        for name, _ in paired(key, value):
            self._links.put(name, self._values[name])
        self._workers.barrier()

    def row_sparse_push(self, key: Key, rows: Any, row_ids: Any) -> None:
        """Push a gradient that is zero but for some rows; only these travel.

        Parameters
        ----------
        key : str or int
            Of a value with at least eight rows for each server.
        rows : Tensor or array, shape (m, ...)
        row_ids : array of integers, shape (m,)
            Where they are; may repeat: such rows are added up.

        Notes
        -----
        The optimizer updates the rows that any worker has pushed, and its state of these.
        """
        self._check_optimizer()
        stored = self._value(key)
        if not self._links.widths[key]:
            raise ConfigError(
                f"kvstore: {key!r} has {stored.shape[0]} rows, too few to be pushed by rows; "
                "push all of it"
            )
        checked_ids(row_ids, stored)
        numbers = np.asarray(row_ids).astype(np.int64).reshape(-1)
        values = np.ascontiguousarray(to_host(getattr(rows, "array", rows)), stored.dtype)
        header = self._header(key, stored.dtype.char, 0)
        self._pushed[key] += 1
        self._links.push_rows(key, numbers, values.reshape(-1, self._links.widths[key]), header)

    def _rows(self, key: Key, numbers: Any) -> Any:
        """Return rows by their ascending numbers."""
        if not self._links.widths[key]:
            return self._links.fetch(key, self._pushed[key])[numbers]
        return self._links.fetch_rows(key, numbers, self._pushed[key])

    def set_optimizer(self, optimizer: str | Optimizer | Updater, **args: Any) -> None:
        """Let the servers update; see `KVStore.set_optimizer`."""
        super().set_optimizer(optimizer, **args)
        self._tell_optimizer()

    def _settings(self) -> dict[str, Any]:
        updater = self._optimizer()
        return {
            "optimizer": updater.optimizer.describe(),
            "wd_mult": sorted(map(list, updater.wd_mult.items()), key=str),
        }

    def _tell_optimizer(self) -> None:
        """Tell the servers the settings, between two rounds."""
        self._told = self._settings()
        for name, count in self._pushed.items():
            self._links.flush(name, count)
        self._workers.barrier()
        self._links.ask("optimizer", **self._told)
        self._workers.barrier()

    def set_updater(self, updater: Update) -> None:
        """Refuse: a function cannot go to servers.

        Raises
        ------
        ConfigError
        """
        raise ConfigError(
            "kvstore: a function cannot be sent to servers, needed an optimizer; call "
            "set_optimizer, or take a store without servers"
        )

    def set_gradient_compression(self, params: Mapping[str, Any]) -> None:
        """Compress what goes to the servers, with error feedback; before the first push.

        Parameters
        ----------
        params : mapping
            ``type``: ``2bit``, ``fp16`` or ``bf16``; ``threshold`` of 2bit. Only float32 is
            compressed.
        """
        kind, threshold = params.get("type", "2bit"), float(params.get("threshold", 0.5))
        self._links.codec = codec(kind, threshold=threshold)
        self._links.ask("compress", type=kind, threshold=threshold)
        self._workers.barrier()

    def save_optimizer_states(self, path: str | Path, dump_optimizer: bool = False) -> None:
        """Write the servers' state of the optimizer to a file; see `KVStore`."""
        self._optimizer()
        self._workers.barrier()
        if self.rank == 0:
            save_arrays(path, self._links.state())
        self._workers.barrier()

    def load_optimizer_states(self, path: str | Path) -> None:
        """Give the servers the optimizer's state of a file that the first worker reads."""
        self._optimizer()
        self._workers.barrier()
        if self.rank == 0:
            self._links.load(load_arrays(path))
        self._workers.barrier()

    def close(self) -> None:
        """Let the servers end; collective over the workers, a second call does nothing."""
        if not self._open:
            return
        self._open = False
        self._workers.barrier()
        for server in range(self._links.servers) if self.rank == 0 else ():
            say(self._links.post, server, {"do": "stop"})
