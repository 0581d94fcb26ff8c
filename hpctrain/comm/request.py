"""Messages under way, and MPI's complaints put into a sentence."""

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from hpctrain.errors import CommError


def call(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call an MPI function; its error becomes a `CommError` that begins with ``what``."""
    try:
        return function(*args)
    except MPI.Exception as error:
        raise translated(what, error) from error


def translated(what: str, error: MPI.Exception) -> CommError:
    """Return the `CommError` for what MPI complained about during ``what``."""
    if error.Get_error_class() == MPI.ERR_TRUNCATE:
        return CommError(
            f"{what}: the message that came is longer than the buffer for it; "
            "both sides must pass arrays of the same size"
        )
    text = " ".join(error.Get_error_string().split())
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

    __slots__ = ("_finish", "_requests", "_what")

    def __init__(
        self,
        what: str = "",
        requests: Sequence[MPI.Request] = (),
        finish: Callable[[list[MPI.Status]], None] | None = None,
    ) -> None:
        self._what = what
        self._requests = list(requests)
        self._finish = finish

    def wait(self) -> None:
        """Block until all is complete; a second call returns at once.

        Raises
        ------
        CommError
            If MPI reports an error, or a message of another size than the buffer's came.
        """
        statuses = [MPI.Status() for _ in self._requests]
        if self._requests:
            call(self._what, MPI.Request.Waitall, self._requests, statuses)
        self._complete(statuses)

    def test(self) -> bool:
        """Return whether all is complete, without blocking; raise as `wait` does."""
        statuses = [MPI.Status() for _ in self._requests]
        if self._requests and not call(
            self._what, MPI.Request.Testall, self._requests, statuses
        ):
            return False
        self._complete(statuses)
        return True

    def _complete(self, statuses: list[MPI.Status]) -> None:
        finish, self._finish, self._requests = self._finish, None, []
        if finish is not None:
            finish(statuses)
