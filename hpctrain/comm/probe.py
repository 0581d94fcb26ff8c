"""Find out whether every rank has a core free for a thread that waits in MPI.

MPI libraries wait by looking again and again.  On a spare core that is the fastest way; on a
core that also computes it steals what it waits for.  Neither the masks of the processes nor
MPI's own view tell: containers and emulated hosts share cores behind their backs.  So it is
tried: the same work alone, and beside a thread that waits.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpctrain.comm.group import Group
from hpctrain.comm.request import call

__all__ = ["Spare", "slowdown", "spare_core"]

LIMIT = 1.10  # a shared core shows as 1.5 to 2; noise of a quiet machine stays below 1.05
_TIMES = (7, 11)  # at least and at most
_PATIENCE_S = 0.25  # then the fewest will do
_WORK_S = 0.008  # longer than the time for which Linux lets a thread run before the next
_SETTLE_S = 0.002
_SIDE = 256  # of the matrices: a product of some 0.3 ms, in cache
_TAG = 7330


@dataclass(frozen=True, slots=True)
class Spare:
    """Whether a thread that waits costs nothing; true or false by itself.

    Attributes
    ----------
    free : bool
        On every rank there is a core for it.
    slowdown : float
        How many times as long as alone the work took beside it, on the rank worst hit.
    """

    free: bool
    slowdown: float

    def __bool__(self) -> bool:
        return self.free


def slowdown(alone: Sequence[float], beside: Sequence[float]) -> float:
    """Return how many times as long work took beside something else; by the medians.

    Examples
    --------
    >>> slowdown([1.0, 1.0, 9.0], [1.5, 1.4, 1.5])
    1.5
    """
    return median(beside) / max(median(alone), 1e-9)


def spare_core(group: Group) -> Spare:
    """Find out whether every rank has a core free for a communication thread; collective.

    All ranks work at the same time, alone and beside a thread that blocks inside MPI, which
    spins without Python's lock, seven to eleven times in turns.

    Parameters
    ----------
    group : Group
        All ranks of the run, or those of the hosts in question; free of other messages.

    Returns
    -------
    Spare
        The same on every rank; false if any rank was slowed down by more than 10 %, or if MPI
        allows no calls from several threads.

    Notes
    -----
    Takes about 0.25 s, and up to 0.5 s where cores are shared.  What else runs on the machine
    counts, too: ask again when that may have changed.
    """
    threads = np.array([MPI.Query_thread() >= MPI.THREAD_MULTIPLE], np.int64)
    group.allreduce(threads, "min", name="threads may call MPI")
    if not threads[0]:
        return Spare(False, float("inf"))
    work = _Work()
    alone, beside = [], []
    # In turns: what changes on the machine meanwhile hits both alike.
    begun = time.perf_counter()
    for turn in range(1, _TIMES[1] + 1):
        group.barrier()
        alone.append(work.timed())
        group.barrier()
        with _waiting():
            beside.append(work.timed())
            group.barrier()
        elapsed = np.array([time.perf_counter() - begun])
        group.allreduce(elapsed, "max", name="elapsed")
        if turn >= _TIMES[0] and elapsed[0] > _PATIENCE_S:
            break
    worst = np.array([slowdown(alone, beside)])
    group.allreduce(worst, "max", name="slow-down")
    return Spare(bool(worst[0] <= LIMIT), float(worst[0]))


class _Work:
    """Products of matrices that take about `_WORK_S`, the same number each time."""

    def __init__(self) -> None:
        self._a: npt.NDArray[np.float32] = np.ones((_SIDE, _SIDE), np.float32)
        self._out = np.empty_like(self._a)
        self._count = 1
        self.timed()
        # The fastest of some, as the first ones wake the core up.
        self._count = max(1, round(_WORK_S / max(min(self.timed() for _ in range(5)), 1e-6)))

    def timed(self) -> float:
        """Do the work and return how long it took."""
        begun = time.perf_counter()
        for _ in range(self._count):
            np.matmul(self._a, self._a, out=self._out)
        return time.perf_counter() - begun


@contextmanager
def _waiting() -> Iterator[None]:
    """Let a thread wait for a message; it has ended when the block is left, in any way."""
    nothing = np.empty(1, np.uint8)
    receiving = call("probe", MPI.COMM_SELF.Irecv, nothing, 0, _TAG)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            call("probe", receiving.Wait)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=wait, name="hpctrain-probe", daemon=True)
    thread.start()
    try:
        # Whoever wakes up is put on an idle core, if there is one; who goes on may have to
        # share its own with the new thread for a while.
        time.sleep(_SETTLE_S)
        yield
    finally:
        # The receive is posted: this is complete at once, and so is that.
        MPI.COMM_SELF.Send(np.zeros(1, np.uint8), 0, _TAG)
        thread.join()
        receiving.Wait()
    if errors:
        raise errors[0]
