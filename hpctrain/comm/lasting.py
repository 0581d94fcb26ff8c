"""Going on without ranks that have died, where MPI bears it.

MPI with ULFM (Open MPI started with ``--with-ft ulfm``) lets the others live: a call that needs
a dead rank raises an error, and a communicator can be made of those who are left.

    rank 0   allreduce   error! - revoke   agree: no   shrink   allreduce   agree: yes
    rank 1   allreduce       done          agree: no   shrink   allreduce   agree: yes
    rank 2   allreduce  †

References
----------
Bland et al., "Post-failure recovery of MPI communication capability", IJHPCA 2013.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from hpctrain.backend import Array
from hpctrain.comm.group import Group
from hpctrain.comm.request import call
from hpctrain.errors import ConfigError, LostRankError

__all__ = ["Deaths", "Lasting", "check_tolerance", "lasting"]

T = TypeVar("T")


def check_tolerance(library: str, environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless this MPI lets ranks live when another dies.

    Parameters
    ----------
    library : str
        The MPI library, as `World.library` names it.
    environ : mapping of str to str
        The environment of this process, where Open MPI's launcher leaves a word.
    """
    there = environ.get("OMPI_MCA_mpi_ft_enable", "").lower() in ("1", "true", "yes", "t")
    if library.startswith("Open MPI") and there:
        return
    raise ConfigError(
        f"exchange.tolerate: got {library}, started without fault tolerance, needed Open MPI "
        "5 or later started with mpirun --with-ft ulfm; start it so, or set it to 0"
    )


def lasting(comm: MPI.Intracomm, work: Callable[[MPI.Intracomm], T]) -> tuple[MPI.Intracomm, T]:
    """Do something collective with those who are left; all of them have it done, or none.

    Collective over all ranks of ``comm`` that live.

    Parameters
    ----------
    comm : MPI.Intracomm
        That lets errors come back as exceptions.
    work : callable
        Gets a communicator, and is called again with a smaller one when a rank has died.

    Returns
    -------
    comm : MPI.Intracomm
        Of the ranks that live: the one given, if none has died.
    object
        What ``work`` returned.
    """
    while True:
        done = not comm.Get_failed().size
        try:
            if done:
                value = work(comm)
        except LostRankError:
            done = False
        if not done:
            comm.Revoke()  # whoever still waits for the dead one is told so
        try:
            # One rank can have it done where another has not: they must not part.
            done = bool(comm.Agree(int(done)))
        except MPI.Exception:  # on all ranks alike: somebody died meanwhile
            done = False
        if done:
            return comm, value
        comm = call("shrink", comm.Shrink)
        comm.Set_errhandler(MPI.ERRORS_RETURN)


class Lasting(Group):
    """A group that ranks may be lost from: its collectives go on with those who are left.

    ``rank`` and ``size`` are those of the last collective, the same on all who live. Whoever
    divides work by them divides it anew when ``size`` has changed; a sum that a rank died in
    has no part of that rank.

    Parameters
    ----------
    group : Group
        Whose communicator this one takes over.

    Notes
    -----
    Each collective costs a second one, which agrees on its outcome.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group.comm, limit=group.limit)

    def _last(self, work: Callable[[], T], *arrays: Array) -> T:
        before = [array.copy() for array in arrays]

        def attempt(comm: MPI.Intracomm) -> T:
            if comm is not self.comm:
                self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
                for array, copy in zip(arrays, before, strict=True):
                    array[...] = copy
            return work()

        return lasting(self.comm, attempt)[1]

    def split(self, color: int, key: int = 0) -> Group:
        """Return the group of the ranks with the same ``color``; see `Group.split`."""
        return self._last(lambda: super(Lasting, self).split(color, key))

    def dup(self) -> Group:
        """Return a group of the same ranks; see `Group.dup`."""
        return self._last(super().dup)

    def barrier(self) -> None:
        """Wait until every rank that lives is here."""
        self._last(super().barrier)

    def allreduce(self, array: Array, op: str = "sum", *, name: str = "") -> None:
        """Combine ``array`` over the ranks that live, in place; see `Group.allreduce`."""
        self._last(lambda: super(Lasting, self).allreduce(array, op, name=name), array)

    def reduce(self, array: Array, root: int, op: str = "sum", *, name: str = "") -> None:
        """Combine ``array`` over the ranks that live into that of rank ``root``."""
        self._last(lambda: super(Lasting, self).reduce(array, root, op, name=name), array)

    def bcast(self, array: Array, root: int, *, name: str = "") -> None:
        """Overwrite ``array`` on every rank that lives by that of rank ``root``."""
        self._last(lambda: super(Lasting, self).bcast(array, root, name=name), array)

    def bcast_obj(self, value: Any, root: int = 0) -> Any:
        """Return the JSON value of rank ``root`` on every rank that lives."""
        return self._last(lambda: super(Lasting, self).bcast_obj(value, root))

    def gather_obj(self, value: Any, root: int = 0) -> list[Any] | None:
        """Return the JSON values of all ranks that live on rank ``root``; None elsewhere."""
        return self._last(lambda: super(Lasting, self).gather_obj(value, root))

    def allgather_obj(self, value: Any) -> list[Any]:
        """Return the JSON values of all ranks that live, in their order, on each of them."""
        return self._last(lambda: super(Lasting, self).allgather_obj(value))

    def allgather(self, array: Array, out: Array, *, name: str = "") -> None:
        """Put the arrays of all ranks that live, in their order, into the head of ``out``.

        Of a rank that dies meanwhile there are zeros at the end.
        """

        def attempt() -> Array:
            part = np.empty(self.size * array.size, out.dtype)
            super(Lasting, self).allgather(array, part, name=name)
            return part

        self._check_parts("allgather", whole=out, part=array)
        found, flat = self._last(attempt), out.reshape(-1)
        flat[: found.size], flat[found.size :] = found, 0

    def free(self) -> None:
        """Free the communicator; with dead ranks in it, leave that to the end of MPI."""
        try:
            super().free()
        except LostRankError:
            self._freed = True


class Deaths:
    """Which ranks of a group have died.

    Parameters
    ----------
    group : Group
    """

    def __init__(self, group: Group) -> None:
        self._comm = group.comm
        self._known: set[int] = set()

    def __call__(self) -> Sequence[int]:
        """Return who has died since the last call; costs a look, no message."""
        failed = call("deaths", self._comm.Get_failed)
        if failed.size == len(self._known):
            return ()
        self.accept()
        all_ranks = np.arange(failed.size).tolist()
        ranks = failed.Translate_ranks(all_ranks, self._comm.group)
        found = sorted(set(ranks) - self._known)
        self._known.update(found)
        return found

    def accept(self) -> None:
        """Let the group listen to anybody again, after somebody has died."""
        call("deaths", self._comm.Ack_failed)
