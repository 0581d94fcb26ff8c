"""What every engine can do, and the part of it that does not depend on threads."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import NoReturn, Self

from hpctrain.engine.lanes import LaneStatistics
from hpctrain.engine.task import Operation
from hpctrain.engine.variable import Variable
from hpctrain.errors import ConfigError, EngineError

__all__ = ["DEFAULT_LANES", "Engine", "Statistics"]

DEFAULT_LANES: Mapping[str, int] = MappingProxyType(
    {"compute": 1, "comm": 1, "io": 1, "copy": 1}
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
    lanes : mapping of str to int
        Workers of each lane, at least 1.

    Raises
    ------
    ConfigError
        If there is no lane, or one without a worker.

    Notes
    -----
    As a context manager it is closed at the end; after an exception in the block, what has
    not started is dropped.
    """

    def __init__(self, lanes: Mapping[str, int]) -> None:
        if not lanes:
            raise ConfigError("engine: got no lanes, needed at least one")
        for name, workers in lanes.items():
            if workers < 1:
                raise ConfigError(
                    f"engine: lane {name} has {workers} workers, needed at least 1"
                )
        self._lane_names = tuple(lanes)

    def variable(self, name: str = "") -> Variable:
        """Return a new variable of this engine, at version 0."""
        return Variable(name, self)

    def operation(
        self,
        fn: Callable[[], object],
        reads: Iterable[Variable] = (),
        writes: Iterable[Variable] = (),
        lane: str = "compute",
        priority: int = 0,
        name: str = "",
    ) -> Operation:
        """Prepare what ``push_operation`` pushes; parameters as of ``push``.

        The caller's file and line are noted here, once.
        """
        return self._prepare(fn, tuple(reads), tuple(writes), lane, priority, name)

    def push(
        self,
        fn: Callable[[], object],
        reads: Iterable[Variable] = (),
        writes: Iterable[Variable] = (),
        lane: str = "compute",
        priority: int = 0,
        name: str = "",
    ) -> None:
        """Push a function to run as soon as its variables and its lane allow.

        Parameters
        ----------
        fn : callable
            Takes no arguments; what it returns is dropped.  It may push, but not wait.
        reads, writes : iterable of Variable
            What it uses.  Repeats are dropped; a variable in both counts as a write.
        lane : str
            Whose workers run it.
        priority : int
            Among the ready tasks of a lane the biggest runs first, then the oldest.
        name : str
            For messages and traces; by default the name of the function.

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
            self._prepare(fn, tuple(reads), tuple(writes), lane, priority, name)
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
            that a dropped task would have written gets an ``EngineError``.

        Notes
        -----
        Further pushes raise ``EngineError``, further calls of ``close`` do nothing.
        """

    @abstractmethod
    def statistics(self) -> Statistics:
        """Return the counts of this moment."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(drop=kind is not None)

    def _prepare(
        self,
        fn: Callable[[], object],
        reads: tuple[Variable, ...],
        writes: tuple[Variable, ...],
        lane: str,
        priority: int,
        name: str,
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
        return Operation(fn, reads, writes, lane, priority, name, site, self)

    def _refuse_foreign(self, what: str) -> NoReturn:
        raise EngineError(f"engine: {what} belongs to another engine; make it with this one")
