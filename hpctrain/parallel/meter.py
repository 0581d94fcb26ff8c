"""How long the compute lane works, and how long it stands still for communication."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

__all__ = ["Meter"]


class Meter:
    """Seconds since the last `take`.

    All but `exchanging` is called on the compute lane, which has one worker, so that its
    sums need no lock.

    Attributes
    ----------
    busy_s : float
        Time in segments and updates.
    exposed_s : float
        Time in which the lane stood still while an exchange was under way, or finished one.
    """

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.exposed_s = 0.0
        self._ended = perf_counter()
        self._exchanges = 0
        self._waited_for = False

    def timed(self, work: Callable[..., Any], *args: Any) -> None:
        """Do ``work`` and count its time; a gap before it counts as exposed."""
        start = perf_counter()
        if self._waited_for or self._exchanges:
            self.exposed_s += start - self._ended
        work(*args)
        self._close(start)

    def exposed(self, work: Callable[..., Any], *args: Any) -> None:
        """Do ``work``, which waits for communication."""
        start = perf_counter()
        work(*args)
        self._ended = perf_counter()
        self.exposed_s += self._ended - start

    def _close(self, start: float) -> None:
        self._ended = perf_counter()
        self.busy_s += self._ended - start
        # If an exchange is under way now, the lane may have nothing to do until it is over.
        self._waited_for = self._exchanges > 0

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Note that an exchange is under way on the communication lane."""
        self._exchanges += 1
        try:
            yield
        finally:
            self._exchanges -= 1

    def take(self) -> tuple[float, float]:
        """Return ``(busy_s, exposed_s)`` and begin anew."""
        sums = self.busy_s, self.exposed_s
        self.busy_s = self.exposed_s = 0.0
        return sums
