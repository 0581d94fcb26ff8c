"""Messages under way, and MPI's complaints put into a sentence."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from hpctrain.errors import CommError


def call(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call an MPI function; its error becomes a `CommError` that begins with ``what``."""
    try:
        return function(*args)
    except MPI.Exception as error:
        raise _translated(what, error.Get_error_code()) from error


def _translated(what: str, code: int) -> CommError:
    if MPI.Get_error_class(code) == MPI.ERR_TRUNCATE:
        return CommError(
            f"{what}: the message that came is longer than the buffer for it; "
            "both sides must pass arrays of the same size"
        )
    text = " ".join(MPI.Get_error_string(code).split())
    return CommError(f"{what}: MPI refused the call and says: {text}")


class Handle:
    """A message or collective under way.

    The arrays that it was given must not be touched before `wait` has returned or `test` has
    returned True.

    Parameters
    ----------
    what : str
        The call, for messages.
    requests : sequence of MPI.Request
        What must be complete; none for a call with nothing to do.
    finish : callable, optional
        Called once with the statuses when all is complete, on the thread that finds it so.
    """

    __slots__ = ("_complete", "_requests", "_statuses", "_what")

    def __init__(
        self,
        what: str = "",
        requests: Sequence[MPI.Request] = (),
        finish: Callable[[list[MPI.Status]], None] | None = None,
    ) -> None:
        self._what = what
        self._requests = list(requests)
        self._statuses = [MPI.Status() for _ in self._requests]
        self._complete = finish

    def wait(self, pause_s: float = 0.0) -> None:
        """Block until all is complete; a second call returns at once.

        Parameters
        ----------
        pause_s : float
            Above 0, look this often and leave the core to others in between: an MPI library
            spins while it waits, which slows the very ranks that it waits for where there
            are more ranks than cores.

        Raises
        ------
        CommError
            If MPI reports an error, or a message of another size than the buffer's came.
        """
        while pause_s and not self.test():
            time.sleep(pause_s)
        self._advance(MPI.Request.Waitall)

    def test(self) -> bool:
        """Return whether all is complete, without blocking; raise as `wait` does."""
        return self._advance(MPI.Request.Testall)

    def _advance(self, function: Callable[..., bool]) -> bool:
        statuses = self._statuses
        try:
            if self._requests and not function(self._requests, statuses):
                return False
        except MPI.Exception as error:
            codes = [status.Get_error() for status in statuses]
            wrong = [code for code in codes if code not in (MPI.SUCCESS, MPI.ERR_PENDING)]
            self._complete, self._requests = None, []
            raise _translated(self._what, (wrong or [error.Get_error_code()])[0]) from error
        complete, self._complete, self._requests = self._complete, None, []
        if complete is not None:
            complete(statuses)
        return True
