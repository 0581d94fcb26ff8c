"""Lanes: a queue of ready tasks, and what the lane has done so far."""

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Condition, Lock, Thread
from time import monotonic
from typing import Any

from hpctrain.engine.flight import Flight
from hpctrain.engine.task import Task

__all__ = ["Lane", "LaneSpec", "LaneStatistics", "ThreadedLane"]


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """What kind of lane it is.

    Parameters
    ----------
    workers : int
        Threads, at least 1.
    ordered : bool
        Start the tasks strictly in push order, whatever is ready: what ranks do in such a
        lane they do in one order on all of them. Needs one worker.
    in_flight : int
        How many deferred tasks one worker may have under way, at least 1.
    pause_s : float
        How long a worker sleeps between two looks at its deferred tasks; 0 to look on and on,
        which is right only on a core of its own.
    beside : str
        A lane on the same core: each look takes time from its tasks.
    patience_s : float
        How long to sleep instead while all workers of the lane ``beside`` have a task. As soon
        as one has none, it may be what is under way that it waits for, and there is a look at
        once; 0 to make no difference.
    block : callable, optional
        Instead of sleeping, wait until there is something new about one of these pendings, for
        however long it takes; False if that cannot be waited for, but only be looked at. What
        becomes ready meanwhile starts afterwards. Needs one worker.
    """

    workers: int = 1
    ordered: bool = False
    in_flight: int = 1
    pause_s: float = 0.0
    beside: str = ""
    patience_s: float = 0.0
    block: Callable[[Sequence[Any]], bool] | None = None


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

    def __init__(self, name: str, spec: LaneSpec | int = 1) -> None:
        self.name = name
        self.spec = LaneSpec(spec) if isinstance(spec, int) else spec
        self.workers = self.spec.workers
        self.active: dict[int, tuple[str, float]] = {}  # by order: name and start of a task
        self.pending = 0  # pushed and not done
        self.running = 0
        self.done = 0
        self.skipped = 0
        self._ready: list[tuple[int, int, Task]] = []
        self._turns: deque[int] = deque()  # of an ordered lane: the orders of what was pushed

    def __bool__(self) -> bool:
        if not self.spec.ordered:
            return bool(self._ready)
        return bool(self._ready) and self._ready[0][1] == self._turns[0]

    def add(self, task: Task) -> None:
        """Count a task that was pushed, ready or not."""
        self.pending += 1
        if self.spec.ordered:
            self._turns.append(task.order)

    def offer(self, task: Task) -> None:
        """Add a ready task."""
        # The order is unique, so that tasks themselves are never compared.
        priority = 0 if self.spec.ordered else -task.operation.priority
        heapq.heappush(self._ready, (priority, task.order, task))

    def take(self) -> Task:
        """Remove and return the ready task whose turn it is.

        That is the one of the biggest priority, the oldest among equals; in an ordered lane the
        oldest of all.
        """
        self.running += 1
        task = heapq.heappop(self._ready)[2]
        if self.spec.ordered:
            self._turns.popleft()
        self.active[task.order] = (task.operation.label, monotonic())
        return task

    def settle(self, task: Task, skipped: bool) -> None:
        """Count a taken task as done."""
        del self.active[task.order]
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

    def __init__(self, name: str, spec: LaneSpec | int, lock: Lock) -> None:
        super().__init__(name, spec)
        self.awake = Condition(lock)  # for workers: a task is ready, or the engine ends
        self.room = Condition(lock)  # for pushers: a task is done
        self.idle = 0  # workers that wait
        self.blocked = 0  # pushers that wait
        self.outside: Flight | None = None  # of a worker that waits without the lock
        self._lock = lock
        self._beside: ThreadedLane | None = None
        self._patient: list[ThreadedLane] = []  # that are beside this one
        self._sleeps = 0  # workers that sleep for longer as others work

    def see(self, lanes: Mapping[str, "ThreadedLane"]) -> None:
        """Learn which lane this one is beside, if that is among ``lanes``."""
        beside = lanes.get(self.spec.beside)
        if self.spec.patience_s and beside is not None:
            self._beside = beside
            beside._patient.append(self)

    def worker(self, work: Callable[..., None], track: str) -> Thread:
        """Make a thread that calls ``work`` with this lane and its track."""
        name, left_waiting = f"hpctrain-{track}", self.spec.block is not None
        return Thread(target=work, args=(self, track), name=name, daemon=left_waiting)

    def rest(self, limit_s: float) -> None:
        """Let a worker sleep until it is woken up, or for ``limit_s``."""
        for lane in self._patient:
            if lane._sleeps:
                lane.awake.notify_all()
        self.idle += 1
        self.awake.wait(limit_s)
        self.idle -= 1

    def look_away(self, flight: Flight) -> None:
        """Let a worker wait until there may be something new about what is under way."""
        if self.spec.block is not None:
            self.outside = flight
            self._lock.release()
            try:
                blocked = self.spec.block(flight.pending())
            finally:
                self._lock.acquire()
                self.outside = None
            if blocked:
                return
        beside = self._beside
        if beside is not None and beside.running >= beside.workers:
            self._sleeps += 1
            self.rest(self.spec.patience_s)
            self._sleeps -= 1
        elif self.spec.pause_s:
            self.rest(self.spec.pause_s)

    def abandon(self, flight: Flight) -> None:
        """Count what is under way as done, and look after it no longer."""
        for left in flight.abandon():
            self.settle(left, skipped=True)

    def offer(self, task: Task) -> None:
        """Add a ready task and wake a worker if one sleeps."""
        super().offer(task)
        if self.idle:
            self.awake.notify()

    def settle(self, task: Task, skipped: bool) -> None:
        """Count a taken task as done and let a blocked pusher in."""
        super().settle(task, skipped)
        if self.blocked:
            self.room.notify()
