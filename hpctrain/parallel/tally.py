"""What a server has done: seconds of work, tasks before a letter, and how late letters were."""

import time
from collections import Counter
from typing import Any

from hpctrain.trace import Recorder

__all__ = ["Tally"]


class Tally:
    """Counts since the last `take`.

    Parameters
    ----------
    slices : int
        What concerns one slice is counted by one thread at a time.
    recorder : Recorder, optional
        Gets the length of the queue and the lateness of pushes, as counters.
    """

    def __init__(self, slices: int, recorder: Recorder | None = None) -> None:
        self._seconds = [0.0] * slices
        self._late: list[Counter[int]] = [Counter() for _ in range(slices)]
        self._queue = [0, 0, 0]  # letters that came, those before them in sum, and at most
        self._skipped: Counter[int] = Counter()
        self._recorder = recorder
        self._started = time.perf_counter()

    def worked(self, index: int, start: float) -> None:
        """Count the time since ``start``, in seconds of `time.perf_counter`."""
        self._seconds[index] += time.perf_counter() - start

    def came(self, before: int) -> None:
        """Count a letter that has so many tasks before it."""
        queue = self._queue
        queue[0] += 1
        queue[1] += before
        queue[2] = max(queue[2], before)
        if self._recorder is not None and self._recorder.enabled:
            self._recorder.counter("queue", before)

    def late(self, index: int, updates: int) -> None:
        """Count a push of a gradient that is so many updates of others late."""
        self._late[index][updates] += 1
        if self._recorder is not None and self._recorder.enabled:
            self._recorder.counter("late", updates)

    def skipped(self, worker: int, bad: bool) -> None:
        """Count a push of a worker, if it is left out because it is not finite."""
        self._skipped[worker] += bad

    def take(self) -> dict[str, Any]:
        """Return what was done since the last call.

        Returns
        -------
        dict
            ``busy``: seconds of work in a second; ``queue``, ``longest``: how many tasks were
            before a letter, in the mean and at most; ``late``: by how many updates of others a
            push was late, with how often; ``skipped``: ranks, with how many of their pushes
            were left out because they were not finite.
        """
        now, late = time.perf_counter(), Counter[int]()
        for each in self._late:
            late.update(each)
            each.clear()
        count, before, most = self._queue
        busy = sum(self._seconds) / max(now - self._started, 1e-9)
        self._queue, self._started = [0, 0, 0], now
        self._seconds = [0.0] * len(self._seconds)
        skipped, self._skipped = +self._skipped, Counter()
        return {
            "busy": busy,
            "queue": before / max(count, 1),
            "longest": most,
            "late": sorted(late.items()),
            "skipped": sorted(skipped.items()),
        }
