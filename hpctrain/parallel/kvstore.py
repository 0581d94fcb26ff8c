"""MXNet's key-value stores: sums of arrays over devices, and over ranks by allreduce.

    kv = kvstore.create("dist_sync")
    kv.init("w", weight)            # rank 0's value, on every rank
    kv.push("w", grads)             # a list with one gradient for each device of this rank
    kv.pull("w", out=weights)       # the sum, or the weight that the optimizer made of it

Without servers every rank keeps the value and makes the same update of it. What the names
promise holds all the same. A push adds up over devices and ranks, it does not average; it is
a round of its own, so that two pushes in a row are two rounds, and a pull gives what the last
one left. Keys are compared over the ranks by name, not by the order of counters.
"""

import atexit
import functools
import os
import sys

from hpctrain.comm import launch, world
from hpctrain.comm.group import Group
from hpctrain.comm.post import Post
from hpctrain.comm.stall import Watch
from hpctrain.errors import ConfigError
from hpctrain.parallel.keyserver import KeyServer
from hpctrain.parallel.servedstore import ServedStore
from hpctrain.parallel.store import KVStore

__all__ = ["KVStore", "create", "everyone", "watch"]

LOCAL = ("local", "device", "nccl")
SYNC = ("dist", "dist_sync", "dist_device_sync", "dist_sync_device", "p3")
ASYNC = ("dist_async", "dist_async_device", "dist_device_async")
ALLREDUCE = ("dist_sync", "dist_device_sync", "dist_sync_device", "allreduce", "horovod")


@functools.cache
def _world() -> world.World:
    """Start MPI once for all stores of this process that were given no group."""
    return world.start()


def everyone() -> Group:
    """Return all ranks, with MPI started here if it is not; the first call is collective."""
    return _world().group


def watch(stall_s: float = 60.0, abort_s: float = 0.0) -> Watch:
    """Return a watch over the collectives of `everyone`, to be told of others; collective."""
    return Watch(_world(), stall_s, abort_s, group=everyone())


def create(name: str = "local", group: Group | None = None, servers: int = -1) -> KVStore:
    """Make a store.

    Parameters
    ----------
    name : str
        ``local``, ``device`` or ``nccl``: sums over the devices of this rank.
        ``dist_sync``, ``dist_device_sync``, ``dist_sync_device``: over all ranks as well, by
        servers if there are any, else by allreduce; ``allreduce`` or ``horovod``: always so.
        ``dist``, ``p3``: by servers, in rounds. ``dist_async``, ``dist_async_device``: by
        servers, which update for each push at once and need an optimizer. Collective.
    group : Group, optional
        The ranks; all of them, with MPI started here, if None.
    servers : int
        How many of the first ranks serve; -1: what the variable ``HPCTRAIN_SERVERS`` says,
        or none.

    Returns
    -------
    KVStore
        On a rank that serves `create` does not return: it serves until the others have closed
        the store, and then leaves by `SystemExit`.

    Raises
    ------
    ConfigError
        If there is no store of that name, or it needs servers.
    """
    key = name.lower() if isinstance(name, str) else name
    if key in LOCAL:
        return KVStore(key)
    if key not in {*SYNC, *ASYNC, *ALLREDUCE}:
        raise ConfigError(
            f"kvstore: got {name!r}, needed one of "
            f"{', '.join(dict.fromkeys(LOCAL + ALLREDUCE + SYNC + ASYNC))}"
        )
    count = launch.servers(os.environ) if servers < 0 else servers
    if count and key not in ("allreduce", "horovod"):
        return _served(key, _world().group if group is None else group, count, group is None)
    if key not in ALLREDUCE:
        raise ConfigError(
            f"kvstore: got {name!r} without a server, needed some; start with "
            "HPCTRAIN_SERVERS=1, or give servers=1"
        )
    return KVStore(key, _world().group.dup() if group is None else group)


def _served(key: str, group: Group, servers: int, at_exit: bool) -> KVStore:
    """Make a store with servers; on these, serve it."""
    if servers >= group.size:
        raise ConfigError(
            f"kvstore: got {servers} servers of {group.size} ranks, which leaves nobody to "
            "work; start more ranks, or fewer servers"
        )
    serves = group.rank < servers
    own, post = group.split(int(serves), group.rank), Post(group.dup())
    if serves:
        KeyServer(post, servers, key not in ASYNC).run()
        sys.exit(0)
    store = ServedStore(key, own, post, servers, key not in ASYNC)
    if at_exit:
        atexit.register(store.close)
    return store
