"""The ranks that share a batch, as what `hpctrain.ops.sync_norm` calls a combiner.

Its messages are part of a plan's steps: a rank waits in a step until all others have come to
the same one. They run on the compute lane, in the order of the program, which is the same on
all ranks, and on communicators of their own, so that they never meet those of an exchange.
So every rank has to run every plan of a step, a rank without a sample too: on a sample made
up for it (`made_up`), while it is not `present`.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from hpctrain.backend import module_of
from hpctrain.comm.group import Group
from hpctrain.comm.progress import Log
from hpctrain.parallel.work import Work

__all__ = ["Combine", "made_up"]

NEAR = 64  # ranks from which two rounds among fewer ranks move fewer bytes than one


class Combine:
    """Merges small arrays of all ranks of a group; the same bits on all of them.

    Making one is collective. It is hashable by identity, and belongs to one thread at a time.

    Parameters
    ----------
    group : Group
        The data-parallel ranks; its communicator is duplicated.
    pause_s : float
        How to wait; see `hpctrain.comm.request.Handle.wait`.
    near : int
        More ranks than this merge in rows, then the rows.
    log : Log, optional
        Where calls are noted; see `hpctrain.comm.stall.Watch`.

    Attributes
    ----------
    present : bool
        Whether this rank has a sample of the batch. If not, what it contributes is zeros, and
        it gets what all get.

    Notes
    -----
    A call is one message of the array's bytes from each rank to each, which is best for the
    few kilobytes of a layer; with p > ``near`` ranks two, among about the root of p each. It
    blocks until all ranks have made the call.
    """

    def __init__(
        self, group: Group, pause_s: float = 0.0, near: int = NEAR, log: Log | None = None
    ) -> None:
        self.present = True
        self.size = group.size
        self._pause_s = pause_s
        self._log = Log() if log is None else log
        self._seconds = 0.0
        row = _row_length(group.size) if group.size > near else 1
        if row == 1:
            self._rounds = [group.dup()]
        else:
            self._rounds = [group.split(group.rank // row), group.split(group.rank % row)]

    def __repr__(self) -> str:
        return f"{self.size} ranks"

    def __call__(self, array: Any, merge: Callable[[Any], Any]) -> Any:
        """Return ``merge`` of the arrays of all ranks, stacked in the order of the ranks.

        Parameters
        ----------
        array : array, float64, the same shape on every rank
        merge : callable
            From shape (k, ...) to (...), for any k. Zeros must add nothing.
        """
        began = perf_counter()
        self._log.posted(0, "statistics of a batch over all ranks")
        merged = array if self.present else module_of(array).zeros_like(array)
        for group in self._rounds:
            merged = merge(self._gathered(group, merged))
        self._log.completed(0)
        self._seconds += perf_counter() - began
        return merged

    def _gathered(self, group: Group, mine: Any) -> Any:
        every = module_of(mine).zeros((group.size, *mine.shape), mine.dtype)
        if self._pause_s:  # the sum of zeros and one array is that array
            every[group.rank] = mine
            group.iallreduce(every).wait(self._pause_s)
        else:
            group.allgather(mine, every)
        return every

    def take(self) -> float:
        """Return the seconds in calls since the last `take`: communication, and waiting."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def free(self) -> None:
        """Free the communicators, on all ranks."""
        for group in self._rounds:
            group.free()


def _row_length(size: int) -> int:
    """Return the largest divisor of ``size`` up to its root: 1 for a prime number.

    Examples
    --------
    >>> _row_length(1024), _row_length(12), _row_length(13)
    (32, 3, 1)
    """
    return next(n for n in range(math.isqrt(size), 0, -1) if size % n == 0)


def made_up(work: Work) -> Work:
    """Return ``work`` with one sample of zeros, for a rank that has none of this batch.

    Parameters
    ----------
    work : Work
        Of no sample: the axis of its arrays that counts samples has length 0.

    Returns
    -------
    Work
        Its count is 0 still. What the plan makes of it, gradients too, must be dropped.

    Examples
    --------
    >>> made_up(Work([np.empty((5, 0, 2))], [np.empty(0, np.int64)], 0, 3)).specs()[0][0].shape
    (5, 1, 2)
    """
    inputs, targets = (
        [np.zeros([max(1, n) for n in a.shape], a.dtype) for a in arrays]
        for arrays in (work.inputs, work.targets)
    )
    return replace(work, inputs=inputs, targets=targets, variable=None)
