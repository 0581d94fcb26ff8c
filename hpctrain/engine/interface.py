"""What every engine can do, and the part of it that does not depend on threads."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from types import MappingProxyType
from typing import NoReturn, Self

from hpctrain.engine.lanes import Lane, LaneSpec, LaneStatistics
from hpctrain.engine.task import Operation
from hpctrain.engine.variable import Variable
from hpctrain.errors import ConfigError, EngineError

__all__ = ["DEFAULT_LANES", "Engine", "Statistics", "ages"]

DEFAULT_LANES: Mapping[str, int | LaneSpec] = MappingProxyType(
    {
        "compute": 1,
        # Exchanges start in one order on all ranks, and several are under way.
        "comm": LaneSpec(ordered=True, in_flight=4, pause_s=2e-4),
        "io": 1,
        "copy": 1,
    }
)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of an engine at one moment.

    Parameters
    ----------
    lanes : mapping of str to LaneStatistics
        By name of the lane.
    failures : int
        Failures that have not been raised yet.
    """

    lanes: Mapping[str, LaneStatistics]
    failures: int

    @property
    def queued(self) -> int:
        """Tasks of all lanes that have been pushed and not started."""
        return sum(lane.queued for lane in self.lanes.values())

    @property
    def running(self) -> int:
        """Tasks of all lanes that run now."""
        return sum(lane.running for lane in self.lanes.values())

    @property
    def done(self) -> int:
        """Tasks of all lanes that have ended."""
        return sum(lane.done for lane in self.lanes.values())


class Engine(ABC):
    """Run functions in the order that their reads and writes ask for.

    Parameters
    ----------
    lanes : mapping of str to int or LaneSpec
        Workers of each lane, at least 1; or all that there is to say about it.

    Raises
    ------
    ConfigError
        If there is no lane, or one without a worker.

    Notes
    -----
    As a context manager it is closed at the end; after an exception in the block, what has
    not started is dropped.
    """

    def __init__(self, lanes: Mapping[str, int | LaneSpec]) -> None:
        if not lanes:
            raise ConfigError("engine: got no lanes, needed at least one")
        for name, spec in lanes.items():
            _check_lane(name, LaneSpec(spec) if isinstance(spec, int) else spec)
        self._lane_names = tuple(lanes)

    def variable(self, name: str = "") -> Variable:
        """Return a new variable of this engine, at version 0."""
        return Variable(name, self)

    def operation(  # noqa: PLR0913 (as push)
        self,
        fn: Callable[[], object],
        reads: Iterable[Variable] = (),
        writes: Iterable[Variable] = (),
        lane: str = "compute",
        priority: int = 0,
        name: str = "",
        deferred: bool = False,
    ) -> Operation:
        """Prepare what ``push_operation`` pushes; parameters as of ``push``.

        The caller's file and line are noted here, once.
        """
        return self._prepare(fn, tuple(reads), tuple(writes), lane, priority, name, deferred)

    def push(  # noqa: PLR0913 (all but two have defaults)
        self,
        fn: Callable[[], object],
        reads: Iterable[Variable] = (),
        writes: Iterable[Variable] = (),
        lane: str = "compute",
        priority: int = 0,
        name: str = "",
        deferred: bool = False,
    ) -> None:
        """Push a function to run as soon as its variables and its lane allow.

        Parameters
        ----------
        fn : callable
            Takes no arguments; what it returns is dropped, unless ``deferred``.  It may push,
            but not wait.
        reads, writes : iterable of Variable
            What it uses.  Repeats are dropped; a variable in both counts as a write.
        lane : str
            Whose workers run it.
        priority : int
            Among the ready tasks of a lane the biggest runs first, then the oldest.
        name : str
            For messages and traces; by default the name of the function.
        deferred : bool
            ``fn`` only starts something and returns what has ``test()``, a method that says
            without blocking whether it is done (or None, if nothing is left to do).  The
            task is done when that is; until then its worker looks after it now and then, and
            starts other tasks, up to ``in_flight`` of its lane.

        Raises
        ------
        EngineError
            If the lane is unknown, a variable belongs to another engine, or this one is closed.

        Notes
        -----
        Waits while the lane is ``run_ahead`` tasks ahead, unless a task of this engine pushes.
        May be called from any thread, but not from a signal handler or a finalizer: they may
        come while their own thread holds the engine's lock.
        """
        self.push_operation(
            self._prepare(fn, tuple(reads), tuple(writes), lane, priority, name, deferred)
        )

    @abstractmethod
    def push_operation(self, operation: Operation) -> None:
        """Push what ``operation`` has prepared; otherwise as ``push``, and cheaper."""

    @abstractmethod
    def wait(self, variable: Variable) -> None:
        """Wait until every write of ``variable`` pushed so far is done.

        Raises
        ------
        EngineError
            If the variable carries a failure that has not been raised yet: ``name (pushed at
            file:line): what was raised``, from that exception.  Or if a task of this engine
            calls it, which would wait for itself.

        Notes
        -----
        Afterwards the caller may read what the variable stands for; to write it, push a task.
        A failure is raised once.  Then the variables that it has spoilt are usable again: tasks
        pushed from now on run, and the next write clears them.
        """

    @abstractmethod
    def wait_all(self) -> None:
        """Wait until all tasks are done, then raise the first failure by push order.

        Raises
        ------
        EngineError
            As ``wait``; all other failures are forgotten.
        """

    @abstractmethod
    def close(self, drop: bool = False) -> None:
        """Finish, end the workers and raise the first failure that nobody has been told.

        Parameters
        ----------
        drop : bool
            Never start what has not started, and raise nothing.  Whoever waits for a variable
            that a dropped task would have written gets an ``EngineError``.  A task that runs
            is waited for no longer than a second: it may wait for another rank, which has
            dropped its part.

        Notes
        -----
        Further pushes raise ``EngineError``, further calls of ``close`` do nothing.
        """

    @abstractmethod
    def statistics(self) -> Statistics:
        """Return the counts of this moment."""

    @abstractmethod
    def running(self) -> list[tuple[str, str, float]]:
        """Return lane, name and age in seconds of each task that runs now, oldest first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(drop=kind is not None)

    def _prepare(  # noqa: PLR0913 (as push)
        self,
        fn: Callable[[], object],
        reads: tuple[Variable, ...],
        writes: tuple[Variable, ...],
        lane: str,
        priority: int,
        name: str,
        deferred: bool,
    ) -> Operation:
        if lane not in self._lane_names:
            known = ", ".join(self._lane_names)
            raise EngineError(f"engine.push: lane {lane!r} is unknown, needed one of {known}")
        if len(writes) > 1:
            writes = tuple(dict.fromkeys(writes))
        if len(reads) > 1:
            reads = tuple(dict.fromkeys(reads))
        if not set(writes).isdisjoint(reads):
            reads = tuple(variable for variable in reads if variable not in writes)
        for variable in (*reads, *writes):
            if variable.owner is not self:
                self._refuse_foreign(f"variable {variable.name!r}")
        # Two frames up is the caller of push or operation: cheap, and no traceback is built.
        frame = sys._getframe(2)
        site = (frame.f_code.co_filename, frame.f_lineno)
        return Operation(fn, reads, writes, lane, priority, name, site, self, deferred)

    def _refuse_foreign(self, what: str) -> NoReturn:
        raise EngineError(f"engine: {what} belongs to another engine; make it with this one")


def _check_lane(name: str, spec: LaneSpec) -> None:
    if spec.workers < 1 or spec.in_flight < 1:
        raise ConfigError(
            f"engine: lane {name} has {spec.workers} workers and {spec.in_flight} tasks in "
            "flight, needed at least 1 of each"
        )
    if spec.ordered and spec.workers > 1:
        raise ConfigError(
            f"engine: lane {name} is ordered and has {spec.workers} workers, needed 1"
        )


def ages(lanes: Iterable[Lane]) -> list[tuple[str, str, float]]:
    """Return what the lanes run now, for `Engine.running`."""
    now = monotonic()
    found = [
        (lane.name, name, now - start)
        for lane in lanes
        for name, start in list(lane.active.values())
    ]
    return sorted(found, key=lambda row: -row[2])
