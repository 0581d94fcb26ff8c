"""The tasks of one worker that are under way: one that runs, and deferred ones looked after."""

from time import perf_counter_ns
from typing import Any

from hpctrain.engine.failure import Failure
from hpctrain.engine.task import Task
from hpctrain.trace import Recorder

__all__ = ["Flight"]


class Flight:
    """Deferred tasks of one worker; not shared with other threads.

    Parameters
    ----------
    track : str
        Of the worker in traces; deferred tasks that overlap get tracks of their own.
    limit : int
        How many may be under way.
    recorder : Recorder or None
        Gets a span for each task, from its start until it is done.
    """

    def __init__(self, track: str, limit: int, recorder: Recorder | None) -> None:
        self._track = track
        self._recorder = recorder
        self._slots: list[tuple[Task, int] | None] = [None] * limit
        self._count = 0
        self.fresh = False  # whether something has happened at the last look

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        """Whether no other task may be started."""
        return self._count == len(self._slots)

    def run(self, task: Task) -> Failure | None:
        """Run ``task``; if it leaves something under way, keep it."""
        start = perf_counter_ns()
        failure = task.run()
        if failure is None and task.pending is not None:
            self._slots[self._slots.index(None)] = (task, start)
            self._count += 1
            self.fresh = True
        else:
            self._span(self._track, task, start)
        return failure

    def poll(self) -> list[tuple[Task, Failure | None]]:
        """Look at each deferred task, and remove and return those that are done."""
        found = []
        for place, entry in enumerate(self._slots):
            if entry is None:
                continue
            task, start = entry
            done, failure = task.poll()
            if done:
                self._slots[place] = None
                self._count -= 1
                self._span(f"{self._track} {place}" if place else self._track, task, start)
                found.append((task, failure))
        self.fresh = bool(found)
        return found

    def pending(self) -> list[Any]:
        """Return what is under way."""
        return [entry[0].pending for entry in self._slots if entry is not None]

    def abandon(self) -> list[Task]:
        """Look after none of them any longer; return them."""
        left = [entry[0] for entry in self._slots if entry is not None]
        self._slots, self._count = [None] * len(self._slots), 0
        return left

    def _span(self, track: str, task: Task, start: int) -> None:
        if self._recorder is not None and self._recorder.enabled:
            self._recorder.span(track, task.operation.label, start, perf_counter_ns())
