"""The engine that runs everything at the push, on the caller: the oracle and the debugger's.

It shares no dependency rule with the threaded engine: push order is right by itself.
"""

from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter_ns, sleep

from hpctrain.engine.failure import Failure, Ledger
from hpctrain.engine.interface import DEFAULT_LANES, Engine, Statistics, ages
from hpctrain.engine.lanes import Lane, LaneSpec
from hpctrain.engine.task import Operation, Task
from hpctrain.engine.variable import Variable
from hpctrain.errors import EngineError
from hpctrain.trace import Recorder

__all__ = ["SerialEngine"]

PAUSE_S = 1e-4  # between two looks at what a deferred task has started


class SerialEngine(Engine):
    """Run each task at its push, before ``push`` returns.

    Parameters
    ----------
    recorder : Recorder, optional
        Gets a span for each task while it is enabled, on the track of its lane.
    lanes : mapping of str to int or LaneSpec
        The lanes that a push may name; nothing else about them matters.
    on_failure : callable, optional
        Called with the ``EngineError`` at once when a task fails.

    Notes
    -----
    Failures are raised by ``wait``, ``wait_all`` and ``close``, not by ``push``, so that either
    engine can stand for the other.  What a task pushes runs after that task.  For one thread
    only.
    """

    def __init__(
        self,
        recorder: Recorder | None = None,
        lanes: Mapping[str, int | LaneSpec] = DEFAULT_LANES,
        on_failure: Callable[[EngineError], object] | None = None,
    ) -> None:
        super().__init__(lanes)
        self._lanes = {name: Lane(name, 1) for name in lanes}
        self._recorder = recorder
        self._ledger = Ledger(on_failure)
        self._queue: deque[Task] = deque()
        self._order = 0
        self._running: Task | None = None
        self._closed = False

    def push_operation(self, operation: Operation) -> None:
        """Run ``operation`` now or, if a task pushes it, after that task."""
        if operation.owner is not self:
            self._refuse_foreign(f"operation {operation.label}")
        if self._closed:
            raise EngineError(f"engine.push: {operation.label} came after close")
        self._queue.append(Task(operation, self._order))
        self._order += 1
        self._lanes[operation.lane].add(self._queue[-1])
        if self._running is None:
            self._drain()

    def wait(self, variable: Variable) -> None:
        """Raise the failure that ``variable`` carries; there is nothing to wait for."""
        if variable.owner is not self:
            self._refuse_foreign(f"variable {variable.name!r}")
        self._refuse_inside("wait")
        error = self._ledger.claim(variable.failure, self._order)
        if error is not None:
            raise error

    def wait_all(self) -> None:
        """Raise the first failure by push order; there is nothing to wait for."""
        self._refuse_inside("wait_all")
        error = self._ledger.claim_all(self._order)
        if error is not None:
            raise error

    def close(self, drop: bool = False) -> None:
        """Refuse further pushes and raise the first failure, unless ``drop``."""
        self._refuse_inside("close")
        self._closed = True
        if not drop:
            self.wait_all()

    def statistics(self) -> Statistics:
        """Return the counts of this moment."""
        counts = {name: lane.statistics() for name, lane in self._lanes.items()}
        return Statistics(counts, len(self._ledger))

    def running(self) -> list[tuple[str, str, float]]:
        """Return what runs now; see ``Engine.running``."""
        return ages(self._lanes.values())

    def _refuse_inside(self, call: str) -> None:
        if self._running is not None:
            label = self._running.operation.label
            raise EngineError(
                f"engine.{call}: called inside the task {label}, which would wait for itself; "
                "name what it needs in reads, or wait outside"
            )

    def _drain(self) -> None:
        while self._queue:
            task = self._queue.popleft()
            self._running = task
            lane = self._lanes[task.operation.lane]
            lane.offer(task)
            lane.take()
            try:
                poison = task.poison()
                failure = poison or self._run(task)
            finally:
                self._running = None
            for variable in task.operation.writes:
                variable.writes += 1
                variable.version += 1
                variable.failure = failure
            lane.settle(task, skipped=poison is not None)

    def _run(self, task: Task) -> Failure | None:
        recorder = self._recorder
        start = perf_counter_ns()
        failure = task.run() or _complete(task)
        if recorder is not None and recorder.enabled:
            operation = task.operation
            recorder.span(operation.lane, operation.label, start, perf_counter_ns())
        if failure is not None:
            self._ledger.enter(failure)
            self._ledger.announce(failure)
        return failure


def _complete(task: Task) -> Failure | None:
    """Wait for what a deferred task has started."""
    while task.pending is not None:
        done, failure = task.poll()
        if done:
            return failure
        sleep(PAUSE_S)
    return None
