"""Lanes: a priority queue of ready tasks, and what the lane has done so far."""

import heapq
from dataclasses import dataclass
from threading import Condition, Lock

from hpctrain.engine.task import Task

__all__ = ["Lane", "LaneStatistics", "ThreadedLane"]


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """Counts of one lane at one moment.

    Parameters
    ----------
    workers : int
        Threads of the lane.
    queued : int
        Tasks pushed and not started, ready or not.
    ready : int
        Those of them that wait for nothing but a worker.
    running : int
        Tasks that run now.
    done : int
        Tasks that have ended, skipped ones included.
    skipped : int
        Tasks that did not run because a variable carried a failure.
    """

    workers: int
    queued: int
    ready: int
    running: int
    done: int
    skipped: int


class Lane:
    """The ready tasks of a lane, and its counts; pure data."""

    def __init__(self, name: str, workers: int) -> None:
        self.name = name
        self.workers = workers
        self.pending = 0  # pushed and not done
        self.running = 0
        self.done = 0
        self.skipped = 0
        self._ready: list[tuple[int, int, Task]] = []

    def __bool__(self) -> bool:
        return bool(self._ready)

    def offer(self, task: Task) -> None:
        """Add a ready task."""
        # The order is unique, so that tasks themselves are never compared.
        heapq.heappush(self._ready, (-task.operation.priority, task.order, task))

    def take(self) -> Task:
        """Remove and return the ready task of the biggest priority, the oldest among equals."""
        self.running += 1
        return heapq.heappop(self._ready)[2]

    def settle(self, skipped: bool) -> None:
        """Count a taken task as done."""
        self.running -= 1
        self.pending -= 1
        self.done += 1
        self.skipped += skipped

    def tracks(self) -> list[str]:
        """Return the name of each worker's track in a trace: spans on a track never overlap."""
        if self.workers == 1:
            return [self.name]
        return [f"{self.name}/{index}" for index in range(self.workers)]

    def statistics(self) -> LaneStatistics:
        """Return the counts of this moment."""
        queued = self.pending - self.running
        return LaneStatistics(
            self.workers, queued, len(self._ready), self.running, self.done, self.skipped
        )


class ThreadedLane(Lane):
    """A lane with worker threads, which all wait under the one lock of the engine."""

    def __init__(self, name: str, workers: int, lock: Lock) -> None:
        super().__init__(name, workers)
        self.awake = Condition(lock)  # for workers: a task is ready, or the engine ends
        self.room = Condition(lock)  # for pushers: a task is done
        self.idle = 0  # workers that wait
        self.blocked = 0  # pushers that wait

    def offer(self, task: Task) -> None:
        """Add a ready task and wake a worker if one sleeps."""
        super().offer(task)
        if self.idle:
            self.awake.notify()

    def settle(self, skipped: bool) -> None:
        """Count a taken task as done and let a blocked pusher in."""
        super().settle(skipped)
        if self.blocked:
            self.room.notify()
