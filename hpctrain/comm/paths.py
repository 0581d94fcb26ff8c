"""Which way slices go: chosen by where the ranks are."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpctrain.comm.compress import Codec
from hpctrain.comm.direct import Direct
from hpctrain.comm.freed import Freed
from hpctrain.comm.group import Group
from hpctrain.comm.node import LINE, Node
from hpctrain.comm.transport import MpiTransport, Transport
from hpctrain.comm.window import PAGE, Window, hosts_of, room_bytes, share
from hpctrain.errors import ConfigError

KINDS = ("auto", "mpi", "direct", "node")
"""MPI's own collectives; messages between pairs; shared memory, and pairs of hosts."""


@dataclass
class Path(Freed):
    """A transport with what it stands on.

    Attributes
    ----------
    kind : {"mpi", "direct", "node"}
    transport : Transport
    window : Window or None
        Where slices must lie; None if they may lie anywhere.
    groups : list of Group
    """

    kind: str
    transport: Transport
    window: Window | None = None
    groups: list[Group] = field(default_factory=list)

    def free(self) -> None:
        """Free the window and the groups; collective; arrays in the window are gone."""
        if self.window is not None:
            self.window.free()
        for group in self.groups:
            group.free()


def make(
    kind: str,
    group: Group,
    codec: Codec | None = None,
    *,
    nbytes: int = 0,
    staging: int = 0,
    hosts: Sequence[int] | None = None,
) -> Path:
    """Return a path over the ranks of ``group``; collective, on the main thread.

    Parameters
    ----------
    kind : {"auto", "mpi", "direct", "node"}
        ``auto`` is what `choose` says, and ``direct`` if shared memory is short.
    group : Group
        Not used afterwards: the path has groups of its own.
    codec : Codec, optional
        Compresses what goes between ranks, or between hosts on the path ``node``.
    nbytes : int
        How much of each rank the window of the path ``node`` holds: all slices.
    staging : int
        And so many bytes more for arrays that lie elsewhere; see `Node`.
    hosts : sequence of int, one for each rank, optional
        Ranks with the same number are taken to be on one host, as a finer division than that
        which MPI sees; for tests, and for the sockets of one board.

    Raises
    ------
    ConfigError
        If the kind is unknown, or cannot be had with these ranks or this codec.
    CommError
        If ``node`` is asked for and shared memory is short.
    """
    seen = hosts_of(group)
    found = seen if hosts is None else list(hosts)
    _check_hosts(found, seen)
    chosen = choose(kind, found, codec is not None)
    if kind == "auto" and chosen == "node" and not _has_room(group, seen, nbytes + staging):
        chosen = "direct"
    if chosen == "node":
        return _node(group, found, codec, nbytes, staging)
    own = group.dup()
    transport = MpiTransport(own) if chosen == "mpi" else Direct(own, codec)
    return Path(chosen, transport, None, [own])


def choose(kind: str, hosts: Sequence[int], coded: bool = False) -> str:
    """Return the kind of path for ranks on these hosts.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    hosts : sequence of int
        For each rank the number of its host.
    coded : bool
        Whether a codec is wanted.

    Returns
    -------
    {"mpi", "direct", "node"}
        For ``auto``: ``node`` where a host has several ranks, and all have as many; else
        ``direct``.  Also ``direct`` on one host with a codec, which was not asked for in vain.

    Raises
    ------
    ConfigError
        If the kind is unknown, or cannot be had.

    Examples
    --------
    >>> choose("auto", [0, 0, 2, 2]), choose("auto", [0, 1, 2]), choose("auto", [0, 0, 2])
    ('node', 'direct', 'direct')
    """
    counts = Counter(hosts)
    even = len(set(counts.values())) == 1
    alone = len(counts) == 1
    if kind == "auto":
        wanted = even and max(counts.values()) > 1 and not (alone and coded)
        return "node" if wanted else "direct"
    if kind not in KINDS:
        raise ConfigError(f"path: got {kind!r}, needed one of {', '.join(KINDS)}")
    if coded and (kind == "mpi" or (kind == "node" and alone)):
        where = "MPI sums" if kind == "mpi" else "ranks of one host sum in shared memory"
        raise ConfigError(
            f"path: got {kind} with compression, but {where}, where nothing can be compressed; "
            "choose direct, or no compression"
        )
    if kind == "node" and not even:
        raise ConfigError(
            f"path: got node with {', '.join(map(str, counts.values()))} ranks on the hosts, "
            "needed as many on each; choose direct or auto"
        )
    return kind


def _check_hosts(hosts: Sequence[int], seen: Sequence[int]) -> None:
    if len(hosts) != len(seen):
        raise ConfigError(f"path: got {len(hosts)} hosts for {len(seen)} ranks")
    for host in set(hosts):
        if len({other for mine, other in zip(hosts, seen, strict=True) if mine == host}) > 1:
            raise ConfigError(f"path: ranks of host {host} have no memory in common")


def _has_room(group: Group, seen: Sequence[int], nbytes: int) -> bool:
    """Return whether all hosts have enough shared memory for all their ranks."""
    free = room_bytes()
    needed = (nbytes + 3 * PAGE) * seen.count(seen[group.rank])
    return all(group.allgather_obj(free is None or free >= needed))


def _node(
    group: Group, hosts: Sequence[int], codec: Codec | None, nbytes: int, staging: int
) -> Path:
    order = list(dict.fromkeys(hosts))
    local = share(group, hosts[group.rank])
    groups, up = [local], None
    if len(order) > 1:
        # By the number of the host, so that each host has one place in all of these groups.
        across = group.split(local.rank, order.index(hosts[group.rank]))
        groups.append(across)
        up = Direct(across, codec)
    window = Window(local, -(-nbytes // LINE) * LINE + staging)
    return Path("node", Node(local, window, up, staging), window, groups)
