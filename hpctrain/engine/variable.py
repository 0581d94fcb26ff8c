"""The whole dependency rule: one first-in, first-out queue per variable.

Pure data: no threads, no lock, no functions are run here.  An engine calls the four methods
``append_read``, ``append_write``, ``complete_read`` and ``complete_write`` under its lock; each
says which uses are *granted* by it, that is, need not wait for this variable any longer.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from hpctrain.engine.failure import Failure

__all__ = ["Variable"]


class Variable:
    """Something that tasks share; made by ``Engine.variable``.

    Parameters
    ----------
    name : str
        For messages.
    owner : object
        The engine; a variable cannot be used with another.

    Attributes
    ----------
    version : int
        How many writes are done, counting failed and skipped ones.
    writes : int
        How many writes have been appended; ``version`` runs after it.
    readers : int
        Granted reads that are not complete.
    writing : bool
        Whether a granted write is not complete; then ``readers`` is 0.
    failure : Failure or None
        What the last write left behind, if it failed or was skipped.
    waiters : int
        How many threads stand in ``wait`` for this variable.

    Notes
    -----
    The tasks are opaque here.  All methods take amortised constant time.
    """

    __slots__ = (
        "failure", "name", "owner", "readers", "version", "waiters", "waiting", "writes",
        "writing",
    )  # fmt: skip

    def __init__(self, name: str = "", owner: object = None) -> None:
        self.name = name
        self.owner = owner
        self.version = 0
        self.writes = 0
        self.readers = 0
        self.writing = False
        self.waiting: deque[tuple[Any, bool]] = deque()  # (task, whether it writes)
        self.failure: Failure | None = None
        self.waiters = 0

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, version={self.version})"

    def append_read(self, task: Any) -> bool:
        """Append a read and return whether it is granted at once."""
        if self.writing or self.waiting:
            self.waiting.append((task, False))
            return False
        self.readers += 1
        return True

    def append_write(self, task: Any) -> bool:
        """Append a write and return whether it is granted at once."""
        self.writes += 1
        if self.writing or self.readers or self.waiting:
            self.waiting.append((task, True))
            return False
        self.writing = True
        return True

    def complete_read(self) -> Sequence[Any]:
        """End a granted read and return the tasks granted by that, in order."""
        self.readers -= 1
        # With readers left, what waits behind them starts with a write: nothing to grant.
        if self.readers or not self.waiting:
            return ()
        return self._grant()

    def complete_write(self) -> Sequence[Any]:
        """End the granted write, bump the version and return the tasks granted by that."""
        self.writing = False
        self.version += 1
        return self._grant() if self.waiting else ()

    def _grant(self) -> Sequence[Any]:
        """Grant the write at the head of the queue, or all reads up to the next write."""
        waiting = self.waiting
        if waiting[0][1]:
            self.writing = True
            return (waiting.popleft()[0],)
        granted = []
        while waiting and not waiting[0][1]:
            granted.append(waiting.popleft()[0])
        self.readers = len(granted)
        return granted
