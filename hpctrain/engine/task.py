"""Operations, prepared once, and tasks: one push of an operation."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from hpctrain.engine.failure import Failure
from hpctrain.engine.variable import Variable

__all__ = ["Operation", "Pending", "Task"]


class Pending(Protocol):
    """Something under way, as a deferred task returns it."""

    def test(self) -> bool:
        """Return whether it is done, without blocking; may raise what went wrong."""


class Operation(NamedTuple):
    """What to run and what it touches, made by ``Engine.operation`` and pushed repeatedly.

    Parameters
    ----------
    fn : callable
        Takes no arguments; what it returns is dropped, unless the task is deferred.
    reads, writes : tuple of Variable
        Disjoint, without repeats.
    lane : str
        Whose workers run it.
    priority : int
        Among the ready tasks of a lane the biggest runs first.
    name : str
        For messages and traces; may be empty.
    site : tuple of (str, int)
        File and line that prepared it.
    owner : object
        The engine that prepared it.
    deferred : bool
        Whether ``fn`` returns a `Pending`, and the task is done when that is.
    """

    fn: Callable[[], object]
    reads: tuple[Variable, ...]
    writes: tuple[Variable, ...]
    lane: str
    priority: int
    name: str
    site: tuple[str, int]
    owner: object
    deferred: bool = False

    @property
    def label(self) -> str:
        """The name, or that of the function where none was given."""
        return self.name or str(getattr(self.fn, "__qualname__", type(self.fn).__name__))


class Task:
    """One push of an operation.

    Attributes
    ----------
    order : int
        Place in the push order of the engine.
    missing : int
        How many variables have not granted their use; at 0 the task is ready.
    pending : Pending or None
        What a deferred task has started.
    """

    __slots__ = ("missing", "operation", "order", "pending")

    def __init__(self, operation: Operation, order: int) -> None:
        self.operation = operation
        self.order = order
        self.missing = 0
        self.pending: Any = None

    def enqueue(self) -> bool:
        """Append the task to all its variables and return whether it is ready."""
        missing = 0
        for variable in self.operation.reads:
            if not variable.append_read(self):
                missing += 1
        for variable in self.operation.writes:
            if not variable.append_write(self):
                missing += 1
        self.missing = missing
        return missing == 0

    def poison(self) -> Failure | None:
        """Return the failure that forbids this task to run, the first by push order."""
        found = None
        operation = self.operation
        for variables in (operation.reads, operation.writes):
            for variable in variables:
                failure = variable.failure
                if failure is None or self.order >= failure.raised_at:
                    continue
                if found is None or failure.order < found.order:
                    found = failure
        return found

    def run(self) -> Failure | None:
        """Run the function and return its failure, if it raised anything at all."""
        try:
            value = self.operation.fn()
        except BaseException as error:
            # Interrupts and exits too: a worker has nobody to pass them to but who waits.
            return self.failure(error)
        if self.operation.deferred:
            self.pending = value
        return None

    def poll(self) -> tuple[bool, Failure | None]:
        """Return whether what a deferred task has started is done, and its failure."""
        try:
            return self.pending.test(), None
        except BaseException as error:
            return True, self.failure(error)

    def failure(self, cause: BaseException) -> Failure:
        """Return ``cause`` as a failure of this task."""
        return Failure(self.operation.label, self.operation.site, self.order, cause)
