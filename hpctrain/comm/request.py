"""Messages under way, and MPI's complaints put into a sentence."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from hpctrain.errors import CommError, LostRankError

# Without fault tolerance MPI gives all of these the class of an unknown error.
_LOST = {MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED} - {MPI.ERR_UNKNOWN}


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
    if MPI.Get_error_class(code) in _LOST:
        return LostRankError(
            f"{what}: a rank has died, MPI says: {text}; the same command goes on from the "
            "last checkpoint"
        )
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

    __slots__ = ("_complete", "_error", "_left", "_requests", "_statuses", "_what")

    def __init__(
        self,
        what: str = "",
        requests: Sequence[MPI.Request] = (),
        finish: Callable[[list[MPI.Status]], None] | None = None,
    ) -> None:
        self._what = what
        self._requests = list(requests)
        self._statuses = [MPI.Status() for _ in self._requests]
        self._left = list(range(len(self._statuses)))  # whose requests are not complete
        self._complete = finish
        self._error: CommError | None = None

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

    def handles(self) -> Sequence["Handle"]:
        """Return what MPI has to complete before this can go on: itself."""
        return (self,) if self._requests else ()

    def _advance(self, function: Callable[..., bool]) -> bool:
        if self._error is not None:
            raise self._error
        statuses = self._statuses
        if len(self._left) < len(statuses):
            statuses = [statuses[i] for i in self._left]
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
            complete(self._statuses)
        return True

    def _drop_null(self, error: MPI.Exception) -> bool:
        """Keep ``error`` if it is of a request of this handle: MPI has freed that."""
        if MPI.REQUEST_NULL not in self._requests:
            return False
        self._error = _translated(self._what, error.Get_error_code())
        self._complete, self._requests, self._left = None, [], []
        return True


def wait_any(handles: Sequence[Handle]) -> None:
    """Block inside MPI until one more message of any of these is complete.

    The thread lets go of Python's lock, and spins as MPI does while it waits: on a core of its
    own the fastest way, on a shared one it slows what it waits for.

    Parameters
    ----------
    handles : sequence of Handle
        None of them complete. Their `Handle.test` says afterwards which is, and raises what
        went wrong.
    """
    places = [(handle, i) for handle in handles for i in range(len(handle._requests))]
    status = MPI.Status()
    try:
        found = MPI.Request.Waitany([handle._requests[i] for handle, i in places], status)
    except MPI.Exception as error:
        if not any(handle._drop_null(error) for handle in handles):
            raise _translated("a wait for messages", error.Get_error_code()) from error
        return
    handle, place = places[found]
    del handle._requests[place]
    handle._statuses[handle._left.pop(place)] = status
