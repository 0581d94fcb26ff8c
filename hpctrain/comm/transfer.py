"""Transfers of several rounds: a generator says what to wait for, then goes on.

Between two rounds of messages a rank has work to do: to sum what has come, to decode it, to
send the result on.  The steps of such a transfer are a generator that yields one `Pending`
after another; `Transfer` carries them out a little further each time somebody asks.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from mpi4py import MPI

from hpctrain.comm.buffers import pieces
from hpctrain.comm.group import Group
from hpctrain.comm.request import Handle, call, wait_any
from hpctrain.errors import CommError

Result = TypeVar("Result")
Flat = np.ndarray[Any, np.dtype[Any]]
Message = tuple[int, Flat]
"""A rank, and the array that goes to it or comes from it."""


class Pending(Protocol):
    """Something under way."""

    def test(self) -> bool:
        """Return whether it is complete, without blocking; bring it forward as far as it goes.

        Raises
        ------
        CommError
            If it has failed.
        """

    def wait(self, pause_s: float = 0.0) -> None:
        """Block until it is complete.

        Parameters
        ----------
        pause_s : float, seconds
            Above 0, look this often and sleep in between; else spin.
        """

    def handles(self) -> Sequence[Handle]:
        """Return what MPI has to complete before this can go on; none if it is not MPI."""


Steps = Iterator[Pending]


class Transfer:
    """A `Pending` made of several, one after the other.

    Parameters
    ----------
    steps : iterator of Pending
        The next one is asked for when the last is complete; what stands between two yields
        runs in the thread that tests or waits.  It runs up to the first yield at once.
    under_way : list of Transfer
        Those of the same transport that are not complete; this one adds and removes itself.

    Notes
    -----
    Later rounds start only when a rank tests or waits.  So whoever waits for one transfer
    brings forward all that are under way: ranks may wait for theirs in different orders.
    All of them belong to one thread at a time.
    """

    __slots__ = ("_current", "_done", "_error", "_steps", "_under_way")

    def __init__(self, steps: Steps, under_way: list["Transfer"]) -> None:
        self._steps = steps
        self._under_way = under_way
        self._current: Pending | None = None
        self._done = False
        self._error: BaseException | None = None
        under_way.append(self)
        self._go_on()

    def test(self) -> bool:
        """Go on as far as possible without blocking; return whether all is complete."""
        if self._error is not None:
            raise self._error
        while not self._done:
            if self._current is not None and not self._attempt(self._current.test):
                return False
            self._go_on()
        return True

    def wait(self, pause_s: float = 0.0) -> None:
        """Block until all is complete; a second call returns at once."""
        while not self.test():
            others = [transfer for transfer in self._under_way if transfer is not self]
            waiting = [self, *(transfer for transfer in others if not transfer.test())]
            if pause_s or not block(waiting):
                time.sleep(pause_s)  # with 0: let other threads and ranks have the core

    def handles(self) -> Sequence[Handle]:
        """Return what MPI has to complete before this can go on; none if it is not MPI."""
        return () if self._current is None else self._current.handles()

    def _go_on(self) -> None:
        self._current = self._attempt(lambda: next(self._steps, None))
        if self._current is None:
            self._end(None)

    def _attempt(self, function: Callable[[], Result]) -> Result:
        try:
            return function()
        except BaseException as error:
            self._end(error)
            raise

    def _end(self, error: BaseException | None) -> None:
        self._done, self._error, self._current = True, error, None
        self._under_way.remove(self)


def block(pending: Sequence[Pending]) -> bool:
    """Block inside MPI until one of these can go on, if MPI is what all of them wait for.

    Parameters
    ----------
    pending : sequence of Pending
        None of them complete.

    Returns
    -------
    bool
        Whether it has blocked; if not, look again after a while.
    """
    handles: list[Handle] = []
    for each in pending:
        found = each.handles()
        if not found:
            return False
        handles += found
    if handles:
        wait_any(handles)
    return bool(handles)


def exchange(
    group: Group, what: str, receives: Sequence[Message], sends: Sequence[Message], tag: int
) -> Handle:
    """Start to receive and send arrays between this rank and others.

    Parameters
    ----------
    group : Group
    what : str
        For messages of errors.
    receives, sends : sequence of (rank, ndarray), flat, C-contiguous, on the host
        All receives are posted before the first send, so that what comes finds its place.
        Arrays longer than the group's limit go in pieces, empty ones as empty messages.
    tag : int, 0 to 32767

    Returns
    -------
    Handle
        Complete when all arrays have come, and those sent may be overwritten.
    """
    requests, wanted = [], []
    for source, flat in receives:
        for part in pieces(flat.size, group.limit) or [slice(0, 0)]:
            requests.append(call(what, group.comm.Irecv, flat[part], source, tag))
            wanted.append((source, part.stop - part.start, flat.dtype))
    for dest, flat in sends:
        for part in pieces(flat.size, group.limit) or [slice(0, 0)]:
            requests.append(call(what, group.comm.Isend, flat[part], dest, tag))

    def check(statuses: list[MPI.Status]) -> None:
        for (source, count, dtype), status in zip(wanted, statuses, strict=False):
            got = status.Get_count(MPI.Datatype.fromcode(dtype.char))
            if got != count:
                raise CommError(
                    f"{what}: got {got} elements from rank {source}, needed {count} of "
                    f"{dtype}; all ranks must pass arrays of the same size"
                )

    return Handle(what, requests, check)


class Pool:
    """Scratch memory that is used again, so that no step allocates any once warmed up.

    Attributes
    ----------
    made : int
        How many pieces of memory it has ever allocated.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Flat]] = {}
        self.made = 0

    def take(self, nbytes: int) -> Flat:
        """Return at least ``nbytes`` bytes, uint8, not initialised."""
        # Powers of two let slices of different lengths share; untouched pages cost nothing.
        size = 1 << max(nbytes - 1, 63).bit_length()
        free = self._free.setdefault(size, [])
        try:  # not asked before: another thread may take the last one
            return free.pop()
        except IndexError:
            self.made += 1
            return np.empty(size, np.uint8)

    def give(self, memory: Flat) -> None:
        """Take back what `take` returned."""
        self._free[memory.size].append(memory)


class Scratch:
    """What one transfer has taken from a pool.

    A transfer that fails does not close it: MPI may still write into the memory.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._taken: list[Flat] = []

    def array(self, count: int, dtype: Any) -> Flat:
        """Return ``count`` elements of ``dtype``, not initialised."""
        kind = np.dtype(dtype)
        memory = self._pool.take(count * kind.itemsize)
        self._taken.append(memory)
        return memory[: count * kind.itemsize].view(kind)

    def close(self) -> None:
        """Give everything back."""
        for memory in self._taken:
            self._pool.give(memory)
        self._taken.clear()
