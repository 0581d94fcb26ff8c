"""Messages with several ranks, as one."""

from collections.abc import Sequence

from hpctrain.comm.letter import Letter
from hpctrain.comm.request import Handle

__all__ = ["Bundle"]


class Bundle:
    """Messages under way that are complete together.

    Parameters
    ----------
    handles : sequence of Handle
    letters : sequence of Letter
        Whose memory is free then.
    """

    __slots__ = ("_handles", "_letters")

    def __init__(self, handles: Sequence[Handle], letters: Sequence[Letter] = ()) -> None:
        self._handles, self._letters = list(handles), list(letters)

    def test(self) -> bool:
        """Return whether all are complete, without blocking."""
        self._handles = [handle for handle in self._handles if not handle.test()]
        if not self._handles:
            self._close()
        return not self._handles

    def wait(self, pause_s: float = 0.0) -> None:
        """Block until all are complete; see `hpctrain.comm.request.Handle.wait`."""
        for handle in self._handles:
            handle.wait(pause_s)
        self._handles = []
        self._close()

    def handles(self) -> list[Handle]:
        """Return what MPI has to complete before."""
        return self._handles

    def _close(self) -> None:
        for letter in self._letters:
            letter.close()
        self._letters = []
