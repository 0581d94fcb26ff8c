"""All ranks of the run: the start and the end of MPI."""

import os
import socket
from typing import Self

from mpi4py import MPI

from hpctrain.comm import launch
from hpctrain.comm.group import Group
from hpctrain.comm.guard import PATIENCE_S, Guard
from hpctrain.comm.parent import die_with_launcher
from hpctrain.errors import CommError


class World:
    """All ranks of this run, as seen from one of them; made by `start`.

    Leaving it as a context manager calls `finish`, unless an exception passes through: that one
    is left to the guard, which ends all ranks if nobody catches it.

    Attributes
    ----------
    rank, size : int
        The number of this rank, and how many there are.
    local_rank, local_size : int
        The same among the ranks on this host.
    host : str
        The name of this host.
    hosts : tuple of str
        The names of all hosts, in the order of their lowest ranks.
    group : Group
        All ranks, for training.
    control : Group
        All ranks, for facts and decisions; its messages never meet those of ``group``.
    guard : Guard
        Ends all ranks when one of them fails.
    library : str
        The MPI library and its version.
    """

    def __init__(self, guard: Guard, debug: bool = False) -> None:
        world = MPI.COMM_WORLD
        self.guard = guard
        self.rank, self.size = world.Get_rank(), world.Get_size()
        self.host = socket.gethostname()
        self.library = library()
        self.group = Group(world.Dup(), debug)
        self.control = Group(world.Dup(), debug)
        self.hosts = tuple(dict.fromkeys(self.control.allgather_obj(self.host)))
        node = world.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank)
        self.local_rank, self.local_size = node.Get_rank(), node.Get_size()
        node.Free()
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if error is None:
            self.finish()
        elif isinstance(error, SystemExit):
            self.guard.depart(_code(error), PATIENCE_S)

    @property
    def whole(self) -> "World":
        """All ranks: this, unless it stands for some of them."""
        return self

    def recount(self) -> bool:
        """Return whether ranks have been lost: none, unless this stands for some ranks."""
        return False

    def finish(self) -> None:
        """Wait for all ranks, however long they take, and end cleanly; twice does nothing.

        A rank that fails meanwhile ends this one too.
        """
        if self._finished:
            return
        self.guard.depart(0, None)
        self.group.free()
        self.control.free()
        self.guard.remove()
        self._finished = True


def start(allow_singleton: bool = False, debug: bool = False) -> World:
    """Start MPI and find out where this rank stands; collective over all ranks, main thread.

    From here on an uncaught exception on any rank ends all of them, and so does the death of
    the launcher.

    Parameters
    ----------
    allow_singleton : bool
        Let a single rank run even if the launcher seems to have started more.
    debug : bool
        Compare every collective of ``group`` and ``control`` over the ranks; see `Group`.

    Raises
    ------
    ConfigError
        If the launcher started more tasks than MPI sees.
    CommError
        If MPI does not let several threads call it at once.
    """
    guard = Guard(MPI.COMM_WORLD.Dup())
    guard.install()
    if launch.detect(os.environ) is not None:
        die_with_launcher()
    launch.check_size(MPI.COMM_WORLD.Get_size(), os.environ, allow_singleton)
    check_threads(MPI.Query_thread())
    return World(guard, debug)


def check_threads(level: int) -> None:
    """Raise `CommError` unless MPI lets all threads call it at once."""
    names = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
    }
    if level in names:
        raise CommError(
            f"start: {library()} gives thread level {names[level]}, needed multiple; unset "
            "MPI4PY_RC_THREAD_LEVEL, or use an MPI library built with thread support"
        )


def library() -> str:
    """Return name and version of the MPI library, on one line."""
    line = MPI.Get_library_version().strip("\0 \n").splitlines()[0]
    return " ".join(line.replace("Version:", "").split()).rstrip(",")


def _code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1
