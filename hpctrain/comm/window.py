"""Memory that the ranks of one host share, and who they are."""

import os

import numpy as np
from mpi4py import MPI

from hpctrain.comm.freed import Freed
from hpctrain.comm.group import Group
from hpctrain.comm.request import call
from hpctrain.comm.transfer import Flat
from hpctrain.errors import CommError

PAGE = 4096
SHM = "/dev/shm"  # where MPI libraries on Linux put shared memory


def hosts_of(group: Group) -> list[int]:
    """Return the lowest rank of the group on the host of each rank; collective.

    Two ranks are on one host if MPI can give them shared memory.
    """
    made = call("hosts", group.comm.Split_type, MPI.COMM_TYPE_SHARED, group.rank)
    with Group(made) as node:
        lowest = np.array([group.rank])
        node.bcast(lowest, 0)
    found = np.empty(group.size, lowest.dtype)
    group.allgather(lowest, found)
    return [int(host) for host in found]


def share(group: Group, host: int) -> Group:
    """Return the group of the ranks on this host that give the same number ``host``."""
    made = call("host", group.comm.Split_type, MPI.COMM_TYPE_SHARED, group.rank)
    with Group(made, limit=group.limit) as node:
        return node.split(host, group.rank)


def room_bytes() -> int | None:
    """Return how much shared memory this host has left; None where nobody knows."""
    try:
        facts = os.statvfs(SHM)
    except OSError:
        return None
    return facts.f_bavail * facts.f_frsize


class Window(Freed):
    """Memory of each rank of a host that the others read and write like their own.

    Parameters
    ----------
    group : Group
        Ranks of one host; collective.
    nbytes : int
        Length of the memory of this rank; 0 for one that only uses that of others.

    Attributes
    ----------
    mine : ndarray, shape (nbytes,), uint8
        The memory of this rank, zero at first, from the beginning of a page.

    Raises
    ------
    CommError
        If there is too little shared memory, or MPI cannot give it.

    Notes
    -----
    What one rank has written another one sees after: `sync` here, a message, `sync` there.

    Arrays on this memory must not be touched after `free`: the process would die.
    """

    def __init__(self, group: Group, nbytes: int) -> None:
        # Whole pages, so that two ranks share none; one more, to begin where a page begins.
        length = (-(-nbytes // PAGE) + 1) * PAGE
        sizes = group.allgather_obj(nbytes)
        _check_room(group, sum(-(-size // PAGE) + 1 for size in sizes) * PAGE)
        self._window = call(
            "window", MPI.Win.Allocate_shared, length, 1, MPI.INFO_NULL, group.comm
        )
        self._all = [self._query(rank, size) for rank, size in enumerate(sizes)]
        self.mine = self._all[group.rank]
        # One epoch from here to the end: order is made by `sync` and messages.
        call("window", self._window.Lock_all, MPI.MODE_NOCHECK)
        self.mine[:] = 0  # the rank that touches memory first has it near on NUMA machines
        self.sync()
        group.barrier()

    def of(self, rank: int) -> Flat:
        """Return the memory of ``rank``, uint8, as long as that rank has asked for."""
        return self._all[rank]

    def sync(self) -> None:
        """Make own writes visible, and those of others that a message has told of."""
        call("window", self._window.Sync)

    def free(self) -> None:
        """Give the memory back; collective; a second call does nothing."""
        if self._all:
            self._all = []
            self.mine = np.empty(0, np.uint8)
            call("window", self._window.Unlock_all)
            call("window", self._window.Free)

    def _query(self, rank: int, nbytes: int) -> Flat:
        memory, _ = call("window", self._window.Shared_query, rank)
        found = np.frombuffer(memory, np.uint8)
        # An address lies at the same distance from a page in every process.
        return found[-found.ctypes.data % PAGE :][:nbytes]


def _check_room(group: Group, needed: int) -> None:
    """Raise on all ranks if the host has too little: touching more would kill the process."""
    free = group.bcast_obj(room_bytes())
    if free is not None and free < needed:
        raise CommError(
            f"window: {SHM} has {free >> 20} MiB free, needed {-(-needed >> 20)} for "
            f"{group.size} ranks; enlarge it, or choose a path without shared memory"
        )
