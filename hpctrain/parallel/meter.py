"""How long the compute lane works, and how long it stands still for communication."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

__all__ = ["Meter", "mean_seconds"]


class Meter:
    """Seconds since the last `take`.

    All but `under_way` is called on the compute lane, which has one worker, so that its sums
    need no lock.

    Parameters
    ----------
    slices : int
        How many there are.

    Attributes
    ----------
    busy_s : float
        Time in segments and updates.
    exposed_s : array, shape (slices + 1,)
        Time in which the lane stood still while exchanges were under way, by the slice that it
        went on with; the last element is for what is not known.
    seconds : dict of int to [float, int]
        Of each segment of the plan: total time since the start, and number of runs.
    updates : dict of int to [float, int]
        The same of the update of each slice.
    """

    def __init__(self, slices: int) -> None:
        self.busy_s = 0.0
        self.exposed_s = np.zeros(slices + 1)
        self.seconds: dict[int, list[Any]] = {}
        self.updates: dict[int, list[Any]] = {}
        self._ended = perf_counter()
        self._exchanges = 0  # under way now
        self._begun = self._seen = 0  # since the start; when the last piece of work ended
        self._waited_for = False

    def timed(self, index: int | None, work: Callable[..., Any], *args: Any) -> float:
        """Do ``work`` and return its seconds; a gap before it counts as exposed.

        Parameters
        ----------
        index : int or None
            The slice whose arrival lets the lane go on.
        """
        start = perf_counter()
        if self._waited_for or self._exchanges or self._begun != self._seen:
            self.exposed_s[-1 if index is None else index] += start - self._ended
        work(*args)
        self._ended = perf_counter()
        self.busy_s += self._ended - start
        # If an exchange is under way now, the lane may have nothing to do until it is over.
        self._waited_for, self._seen = self._exchanges > 0, self._begun
        return self._ended - start

    def segment(self, index: int, work: Callable[..., Any], *args: Any) -> None:
        """Do the work of a segment."""
        _count(self.seconds, index, self.timed(None, work, *args))

    def update(self, index: int, work: Callable[..., Any], *args: Any) -> None:
        """Do the work of updating a slice."""
        _count(self.updates, index, self.timed(index, work, *args))

    def exposed(self, index: int, work: Callable[..., Any], *args: Any) -> None:
        """Do ``work``, which waits for a slice."""
        start = perf_counter()
        work(*args)
        self._ended = perf_counter()
        self.exposed_s[index] += self._ended - start

    def under_way(self, pending: Any) -> Any:
        """Note an exchange on the communication lane, until it is found done."""
        if pending is None:
            return None
        self._exchanges += 1
        self._begun += 1
        return _Noted(self, pending)

    def done(self) -> None:
        """Note the end of an exchange."""
        self._exchanges -= 1

    def take(self) -> tuple[float, np.ndarray]:
        """Return ``(busy_s, exposed_s)`` and begin anew."""
        sums = self.busy_s, self.exposed_s
        self.busy_s, self.exposed_s = 0.0, np.zeros_like(sums[1])
        return sums


def mean_seconds(entries: dict[int, list[Any]], count: int) -> np.ndarray:
    """Return the mean times of entries 0 to ``count - 1``, 0 where nothing was measured."""
    found = (entries.get(index, (0.0, 1)) for index in range(count))
    return np.array([seconds / runs for seconds, runs in found])


def _count(entries: dict[int, list[Any]], index: int, seconds: float) -> None:
    entry = entries.setdefault(index, [0.0, 0])
    entry[0] += seconds
    entry[1] += 1


class _Noted:
    """A pending exchange whose end is noted."""

    __slots__ = ("_meter", "_pending")

    def __init__(self, meter: Meter, pending: Any) -> None:
        self._meter, self._pending = meter, pending

    def test(self) -> bool:
        done = bool(self._pending.test())
        if done:
            self._meter.done()
        return done

    def handles(self) -> Any:
        return self._pending.handles()
