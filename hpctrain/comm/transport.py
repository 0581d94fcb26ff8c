"""How slices of the gradient travel: one interface, and MPI's own collectives behind it."""

from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from hpctrain.backend import Array
from hpctrain.comm.buffers import pieces
from hpctrain.comm.group import Group
from hpctrain.comm.request import Handle, call
from hpctrain.comm.transfer import Pending, Pool, Scratch, Steps, Transfer
from hpctrain.errors import CommError

UNIT = 16
"""Parts begin at multiples of this many elements: 64 bytes of float32, a cache line."""

State = dict[str, np.ndarray[Any, np.dtype[Any]]]


class Transport(Protocol):
    """Sums and gathers slices over the ranks of a group.

    All ranks start the same calls in the same order; some tens may be under way, and be waited
    for in any order.  What a call is given must not be touched before it is complete.  Sums
    are made in a fixed order of the ranks: the same bits on all ranks, and in every run.  A
    transport belongs to one thread at a time; who waits brings forward all that is under way
    on this transport, and nothing on others.

    Attributes
    ----------
    rank, size : int
        The place of this rank among those that sum.

    Notes
    -----
    ``array`` is always 1-D, C-contiguous, float32 or float64, on the host, of the same length
    and dtype on every rank.  ``key`` names it: one key has one length and dtype until `reset`,
    and is under way once at a time.  The first ``exact`` elements are summed as they are, never
    compressed, and are valid on every rank afterwards.
    """

    rank: int
    size: int

    def part(self, count: int) -> slice:
        """Return the part of ``count`` elements whose sum this rank makes.

        The parts of all ranks tile ``range(count)``.
        """

    def allreduce(self, array: Array, key: int, exact: int = 0) -> Pending:
        """Sum over all ranks, in place."""

    def reduce_scatter(self, array: Array, key: int, exact: int = 0) -> Pending:
        """Sum over all ranks; ``array[part(n)]`` and ``array[:exact]`` then hold the sums.

        The rest of ``array`` is undefined afterwards.
        """

    def allgather(self, array: Array, key: int) -> Pending:
        """Bring ``array[part(n)]`` of every rank to all; bits are never changed."""

    def reset(self) -> None:
        """Forget what is kept for each key; on all ranks, with nothing under way."""

    def state(self) -> State:
        """Return copies of the errors that compression still owes, for a checkpoint.

        Empty where nothing is compressed.  Every rank has its own.
        """

    def load(self, state: State) -> None:
        """Continue from what `state` returned on the same rank of as many."""

    def span(self, name: str, count: int, exact: int = 0) -> slice:
        """Return the elements of a slice of ``count`` that ``state()[name]`` is about."""

    def take_over(self, owed: Array, key: int, exact: int = 0) -> None:
        """Owe a part of what all ranks together owe of slice ``key``.

        Parameters
        ----------
        owed : ndarray, shape (count,), float32
            The same on every rank, all of which call this, on the way from another number of
            ranks: nothing that compression owes is lost.  Each rank, or host, owes as much.
        """


def part_of(count: int, size: int, rank: int) -> slice:
    """Return part ``rank`` of ``count`` elements in ``size`` almost equal parts.

    Examples
    --------
    >>> [part_of(40, 2, rank) for rank in range(2)]
    [slice(0, 32, None), slice(32, 40, None)]
    """
    units = -(-count // UNIT)
    # Rounded up, so that part 0 holds the head even if there is little else.
    first, last = -(-units * rank // size), -(-units * (rank + 1) // size)
    return slice(min(first * UNIT, count), min(last * UNIT, count))


def check_array(what: str, array: Array) -> None:
    """Raise `CommError` unless ``array`` is a slice that a transport takes."""
    if not isinstance(array, np.ndarray):
        raise CommError(f"{what}: got a {type(array).__name__}, needed a NumPy array")
    if array.dtype not in (np.float32, np.float64) or not array.dtype.isnative:
        raise CommError(f"{what}: got dtype {array.dtype.str}, needed float32 or float64")
    if array.ndim != 1 or not array.flags.c_contiguous or not array.flags.writeable:
        raise CommError(
            f"{what}: got shape {array.shape} with strides {array.strides}, "
            f"{'' if array.flags.writeable else 'read-only, '}"
            "needed a contiguous array of one dimension that may be written"
        )


class MpiTransport:
    """Non-blocking collectives of the MPI library, which chooses the algorithm.

    Parameters
    ----------
    group : Group
        Used by this transport alone; its limit cuts the messages.

    Notes
    -----
    Nothing is compressed, so that ``exact`` needs no care; `reduce_scatter` with a head is an
    `allreduce`, for MPI has no collective that does both.  The order of summation is MPI's.
    """

    def __init__(self, group: Group) -> None:
        self.rank, self.size = group.rank, group.size
        self.pool = Pool()
        self._group = group
        self._under_way: list[Transfer] = []

    def part(self, count: int) -> slice:
        """Return the part of ``count`` elements whose sum this rank makes."""
        return part_of(count, self.size, self.rank)

    def allreduce(self, array: Array, key: int, exact: int = 0) -> Pending:
        """Sum over all ranks, in place."""
        what = f"allreduce of slice {key}"
        check_array(what, array)
        if self.size == 1:
            return Handle()
        comm = self._group.comm
        return Handle(
            what,
            [
                call(what, comm.Iallreduce, MPI.IN_PLACE, array[piece])
                for piece in pieces(array.size, self._group.limit)
            ],
        )

    def reduce_scatter(self, array: Array, key: int, exact: int = 0) -> Pending:
        """Sum over all ranks; ``array[part(n)]`` then holds the sum, and the head."""
        if exact or self.size == 1:
            return self.allreduce(array, key)
        what = f"reduce_scatter of slice {key}"
        check_array(what, array)
        return Transfer(self._scatter(what, array), self._under_way)

    def allgather(self, array: Array, key: int) -> Pending:
        """Bring the parts of all ranks to all."""
        what = f"allgather of slice {key}"
        check_array(what, array)
        if self.size == 1:
            return Handle()
        requests = []
        for piece, counts, starts in self._cuts(array.size):
            target = [array[piece], counts, starts, MPI.Datatype.fromcode(array.dtype.char)]
            requests.append(
                call(what, self._group.comm.Iallgatherv, MPI.IN_PLACE, target),
            )
        return Handle(what, requests)

    def reset(self) -> None:
        """Do nothing: nothing is kept."""

    def state(self) -> State:
        """Return nothing: nothing is compressed."""
        return {}

    def load(self, state: State) -> None:
        """Do nothing."""

    def span(self, name: str, count: int, exact: int = 0) -> slice:
        """Return no element."""
        return slice(0, 0)

    def take_over(self, owed: Array, key: int, exact: int = 0) -> None:
        """Do nothing."""

    def _cuts(self, count: int) -> list[tuple[slice, list[int], list[int]]]:
        """Return pieces, and how much of every part lies in each, and where."""
        parts = [part_of(count, self.size, rank) for rank in range(self.size)]
        found = []
        for piece in pieces(count, self._group.limit):
            spans = [
                (max(part.start, piece.start), min(part.stop, piece.stop)) for part in parts
            ]
            counts = [max(0, stop - start) for start, stop in spans]
            starts = [min(start, piece.stop) - piece.start for start, _ in spans]
            found.append((piece, counts, starts))
        return found

    def _scatter(self, what: str, array: Array) -> Steps:
        scratch = Scratch(self.pool)
        part = self.part(array.size)
        sums = scratch.array(part.stop - part.start, array.dtype)
        requests, done = [], 0
        for piece, counts, _ in self._cuts(array.size):
            mine = sums[done : done + counts[self.rank]]
            done += mine.size
            requests.append(
                call(what, self._group.comm.Ireduce_scatter, array[piece], mine, counts)
            )
        yield Handle(what, requests)
        array[part] = sums
        scratch.close()
