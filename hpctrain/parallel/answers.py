"""Letters on their way to several workers."""

from collections.abc import Callable

from hpctrain.comm.letter import Letter
from hpctrain.comm.request import Handle
from hpctrain.errors import LostRankError

__all__ = ["Copies"]


class Copies:
    """A letter that goes to several workers; its memory is free when all have it.

    One thread looks after all its copies.

    Parameters
    ----------
    letter : Letter
    count : int
        How often `send` will be called.
    lasts : bool
        Go on when a worker has died.
    """

    def __init__(self, letter: Letter, count: int, lasts: bool = False) -> None:
        self._letter, self._left, self.lasts = letter, count, lasts

    def send(self, start: Callable[[], Handle]) -> "_Copy | None":
        """Start to send it to one more."""
        try:
            return _Copy(self, start())
        except LostRankError:
            if not self.lasts:
                raise
            self.sent()
            return None

    def sent(self) -> None:
        """Note that one more has it."""
        self._left -= 1
        if not self._left:
            self._letter.close()


class _Copy:
    """A copy under way."""

    def __init__(self, copies: Copies, handle: Handle) -> None:
        self._copies, self._handle = copies, handle

    def test(self) -> bool:
        try:
            done = self._handle.test()
        except LostRankError:
            if not self._copies.lasts:
                raise
            done = True
        if done:
            self._copies.sent()
        return done
