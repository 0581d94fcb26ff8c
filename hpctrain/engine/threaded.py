"""The asynchronous engine: worker threads per lane, one lock for all of its state."""

from collections.abc import Callable, Mapping
from threading import Condition, Lock, get_ident, main_thread

from hpctrain.engine.failure import Failure, Ledger
from hpctrain.engine.flight import Flight
from hpctrain.engine.interface import DEFAULT_LANES, Engine, Statistics, ages
from hpctrain.engine.lanes import LaneSpec, ThreadedLane
from hpctrain.engine.task import Operation, Task
from hpctrain.engine.variable import Variable
from hpctrain.errors import ConfigError, EngineError
from hpctrain.trace import Recorder

__all__ = ["ThreadedEngine"]

# How often an idle worker looks whether the main thread has ended without closing.
IDLE_S = 0.25
# How long a worker is waited for when all is dropped: it may wait for a process that has
# dropped its part, and who closes has an error to tell.
GRACE_S = 0.5


class ThreadedEngine(Engine):
    """Run tasks on worker threads as their variables, lanes and priorities allow.

    Parameters
    ----------
    lanes : mapping of str to int or LaneSpec
        Worker threads of each lane; or all that there is to say about it.
    run_ahead : int
        How many tasks a lane may have pushed and not done before ``push`` waits.
    recorder : Recorder, optional
        Gets a span for each task while it is enabled, on one track per worker.
    on_failure : callable, optional
        Called with the ``EngineError`` at once when a task fails, in the worker.

    Raises
    ------
    ConfigError
        If a number is below 1.

    Notes
    -----
    Overlap is real where tasks let go of the interpreter lock: in NumPy, MPI and HDF5 calls.
    """

    def __init__(
        self,
        lanes: Mapping[str, int | LaneSpec] = DEFAULT_LANES,
        run_ahead: int = 64,
        recorder: Recorder | None = None,
        on_failure: Callable[[EngineError], object] | None = None,
    ) -> None:
        super().__init__(lanes)
        if run_ahead < 1:
            raise ConfigError(f"engine: got run_ahead {run_ahead}, needed at least 1")
        self._run_ahead = run_ahead
        self._recorder = recorder
        self._ledger = Ledger(on_failure)
        self._lock = Lock()  # guards all that follows, and every variable
        self._lanes = {name: ThreadedLane(name, n, self._lock) for name, n in lanes.items()}
        for lane in self._lanes.values():
            lane.see(self._lanes)
        self._settled = Condition(self._lock)  # for waiters: a variable or everything is done
        self._waiting = 0  # threads that wait, for a variable or for everything
        self._order = 0
        self._closing = False
        self._dropping = False
        self._closed = False
        self._threads = [
            lane.worker(self._work, track)
            for lane in self._lanes.values()
            for track in lane.tracks()
        ]
        for thread in self._threads:
            thread.start()
        self._workers = {thread.ident for thread in self._threads}

    def push_operation(self, operation: Operation) -> None:
        """Push what ``operation`` has prepared; waits while its lane is too far ahead."""
        if operation.owner is not self:
            self._refuse_foreign(f"operation {operation.label}")
        lane = self._lanes[operation.lane]
        with self._lock:
            if self._closing or lane.pending >= self._run_ahead:
                self._admit(lane, operation)
            task = Task(operation, self._order)
            self._order += 1
            lane.add(task)
            if task.enqueue():
                lane.offer(task)

    def wait(self, variable: Variable) -> None:
        """Wait until every write of ``variable`` pushed so far is done; see ``Engine.wait``.

        Needs no free worker: nothing is pushed.
        """
        if variable.owner is not self:
            self._refuse_foreign(f"variable {variable.name!r}")
        with self._lock:
            self._refuse_inside("wait")
            target = variable.writes
            variable.waiters += 1
            self._waiting += 1
            try:
                while variable.version < target and not self._quiet():
                    self._settled.wait()
            finally:
                variable.waiters -= 1
                self._waiting -= 1
            if variable.version < target:
                error = self._unfinished()
            else:
                error = self._ledger.claim(variable.failure, self._order)
        if error is not None:
            raise error

    def wait_all(self) -> None:
        """Wait until all tasks are done, then raise the first failure by push order."""
        with self._lock:
            self._refuse_inside("wait_all")
            self._drain()
            error = self._ledger.claim_all(self._order) or self._unfinished()
        if error is not None:
            raise error

    def close(self, drop: bool = False) -> None:
        """Finish or drop what is pushed and join the workers; see ``Engine.close``."""
        with self._lock:
            self._refuse_inside("close")
            if self._closed:
                return
            self._begin_close(drop)
            self._drain(GRACE_S if drop else None)
            for lane in self._lanes.values():
                lane.awake.notify_all()
        for thread in self._threads:
            thread.join(GRACE_S if drop else None)
        with self._lock:
            self._closed = True
            self._workers.clear()  # the system may give their identifiers to new threads
            error = self._ledger.claim_all(self._order) or self._unfinished()
        if error is not None and not drop:
            raise error

    def statistics(self) -> Statistics:
        """Return the counts of this moment."""
        with self._lock:
            counts = {name: lane.statistics() for name, lane in self._lanes.items()}
            return Statistics(counts, len(self._ledger))

    def running(self) -> list[tuple[str, str, float]]:
        """Return what runs now; see ``Engine.running``."""
        with self._lock:
            return ages(self._lanes.values())

    # All below is called under the lock.

    def _admit(self, lane: ThreadedLane, operation: Operation) -> None:
        """Wait until ``lane`` has room, or refuse if the engine closes."""
        if get_ident() in self._workers:
            return  # a worker that waited for room would wait for itself
        lane.blocked += 1
        try:
            while lane.pending >= self._run_ahead and not self._closing:
                lane.room.wait()
        finally:
            lane.blocked -= 1
        if self._closing:
            raise EngineError(f"engine.push: {operation.label} came after close")

    def _refuse_inside(self, call: str) -> None:
        if get_ident() in self._workers:
            raise EngineError(
                f"engine.{call}: called inside a task, which would wait for itself; "
                "name what the task needs in its reads, or wait outside"
            )

    def _begin_close(self, drop: bool) -> None:
        """Turn away those who would push and, after a drop, those who wait."""
        self._closing = True
        self._dropping = self._dropping or drop
        for lane in self._lanes.values():
            lane.room.notify_all()
            if drop and lane.outside is not None:
                lane.abandon(lane.outside)
        self._settled.notify_all()

    def _quiet(self) -> bool:
        """Return whether no task runs or could start.

        Then all are done, except after a drop, or after an interrupt in the middle of a push:
        its task never comes, nor do those behind it, and whoever waits must hear of it.
        """
        could_start = not self._dropping
        return not any(lane.running or (lane and could_start) for lane in self._lanes.values())

    def _unfinished(self) -> EngineError | None:
        """Return the error for those who wait for tasks that will never run, if any."""
        lost = sum(lane.pending - lane.running for lane in self._lanes.values())
        if not lost:
            return None
        reason = (
            "was closed before they started" if self._dropping else "was interrupted in a push"
        )
        return EngineError(f"engine: {lost} tasks will never run, because the engine {reason}")

    def _drain(self, limit_s: float | None = None) -> None:
        self._waiting += 1
        try:
            self._settled.wait_for(self._quiet, limit_s)
        finally:
            self._waiting -= 1

    def _work(self, lane: ThreadedLane, track: str) -> None:
        """Take and run the ready tasks of ``lane`` until the engine ends."""
        flight = Flight(track, lane.spec.in_flight, self._recorder)
        with self._lock:
            while (task := self._take(lane, flight)) is not None or flight:
                if task is not None:
                    self._start(lane, flight, task)
                if self._dropping:
                    lane.abandon(flight)  # others may have dropped their part
                    self._settled.notify_all()
                elif flight:
                    self._look_after(lane, flight)
                task = None  # an idle worker must not keep alive what it has captured

    def _take(self, lane: ThreadedLane, flight: Flight) -> Task | None:
        """Wait for a ready task; None to look after what is under way, or to end."""
        if flight:
            if (flight.full or not lane) and not flight.fresh and not self._dropping:
                lane.look_away(flight)
            return lane.take() if lane and not flight.full and not self._dropping else None
        while not lane or self._dropping:
            # The interpreter joins the workers before it ends.  If the main thread has ended
            # without closing, what it pushed is finished, and then they stop.
            if not main_thread().is_alive():
                self._begin_close(drop=False)
            if self._dropping or (self._closing and self._quiet()):
                return None
            lane.rest(IDLE_S)
        return lane.take()

    def _start(self, lane: ThreadedLane, flight: Flight, task: Task) -> None:
        """Run a task; what it leaves under way goes to ``flight``."""
        failure = poison = task.poison()
        if poison is None:
            self._lock.release()
            try:
                failure = flight.run(task)
            finally:
                self._lock.acquire()
            if failure is None and task.pending is not None:
                return
        self._end(lane, task, failure, poison is not None)

    def _look_after(self, lane: ThreadedLane, flight: Flight) -> None:
        """Finish the deferred tasks that are done."""
        self._lock.release()
        try:
            done = flight.poll()
        finally:
            self._lock.acquire()
        for task, failure in done:
            self._end(lane, task, failure, skipped=False)

    def _end(
        self, lane: ThreadedLane, task: Task, failure: Failure | None, skipped: bool
    ) -> None:
        if failure is not None and not skipped:
            self._ledger.enter(failure)
            self._lock.release()
            try:
                self._ledger.announce(failure)
            finally:
                self._lock.acquire()
        self._finish(task, failure)
        lane.settle(task, skipped)
        if self._waiting and self._quiet():
            self._settled.notify_all()

    def _finish(self, task: Task, failure: Failure | None) -> None:
        """Complete the uses of ``task`` and hand on what they granted."""
        operation = task.operation
        for variable in operation.reads:
            for granted in variable.complete_read():
                self._grant(granted)
        for variable in operation.writes:
            variable.failure = failure
            for granted in variable.complete_write():
                self._grant(granted)
            if variable.waiters:
                self._settled.notify_all()

    def _grant(self, task: Task) -> None:
        task.missing -= 1
        if not task.missing:
            self._lanes[task.operation.lane].offer(task)
