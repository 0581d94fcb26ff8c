"""Failures: how a task's exception reaches the one who waits, once.

A failed task *poisons* the variables that it writes.  A later task that uses a poisoned
variable is skipped and poisons its own writes with the same failure.  Raising the failure
ends that for every task pushed afterwards; those pushed before are still skipped, however
late they come to run, so that the outcome does not depend on timing.
"""

import sys
from collections.abc import Callable

from hpctrain.errors import EngineError

__all__ = ["Failure", "Ledger"]

NEVER = sys.maxsize


class Failure:
    """One exception of one task, shared by all variables that it has spoilt.

    Parameters
    ----------
    label : str
        Name of the task.
    site : tuple of (str, int)
        File and line that pushed it.
    order : int
        Its place in the push order of the engine.
    cause : BaseException
        What it raised.
    """

    __slots__ = ("error", "order", "raised_at")

    def __init__(
        self, label: str, site: tuple[str, int], order: int, cause: BaseException
    ) -> None:
        # A KeyError prints its bare key, and an interrupt nothing: there the type is the news.
        bare = isinstance(cause, KeyError) or not str(cause)
        text = repr(cause) if bare else str(cause)
        self.error: EngineError | None = EngineError(
            f"{label} (pushed at {site[0]}:{site[1]}): {text}"
        )
        self.error.__cause__ = cause
        self.order = order
        self.raised_at = NEVER

    def claim(self, now: int) -> EngineError | None:
        """Return the error to raise the first time, afterwards None.

        Tasks whose place in the push order is ``now`` or later no longer see the failure.
        The exception, with the frames and arrays that it holds, is let go.
        """
        error, self.error = self.error, None
        self.raised_at = min(self.raised_at, now)
        return error


class Ledger:
    """The failures of one engine that nobody has been told yet.

    Parameters
    ----------
    on_failure : callable, optional
        Called at once, in the thread that ran the task, with the ``EngineError``.
    """

    def __init__(self, on_failure: Callable[[EngineError], object] | None = None) -> None:
        self._on_failure = on_failure
        self._open: list[Failure] = []

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, failure: Failure) -> None:
        """Keep ``failure`` until somebody waits."""
        self._open.append(failure)

    def announce(self, failure: Failure) -> None:
        """Call ``on_failure``; what that raises is noted on the original exception.

        Not to be called under the engine's lock: the callback may push.
        """
        if self._on_failure is None or failure.error is None:
            return
        try:
            self._on_failure(failure.error)
        except BaseException as second:
            # The worker must live on: others wait for the variables of this task.
            failure.error.add_note(f"on_failure raised {second!r}")

    def claim(self, failure: Failure | None, now: int) -> EngineError | None:
        """Return the error of ``failure``, if it is one that nobody has been told yet."""
        if failure is None:
            return None
        if failure in self._open:
            self._open.remove(failure)
        return failure.claim(now)

    def claim_all(self, now: int) -> EngineError | None:
        """Return the error of the first failure by push order, and forget the others."""
        told = sorted(self._open, key=lambda failure: failure.order)
        self._open.clear()
        errors = [failure.claim(now) for failure in told]
        return errors[0] if errors else None
