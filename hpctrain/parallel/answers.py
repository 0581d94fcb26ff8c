"""Letters on their way to several workers."""

from collections.abc import Callable, Sequence
from functools import partial

from hpctrain.comm.letter import Letter
from hpctrain.comm.post import Post, reply_tag
from hpctrain.comm.request import Handle
from hpctrain.engine import Engine
from hpctrain.errors import LostRankError

__all__ = ["Answers", "Copies"]


class Answers:
    """Lets letters leave when it is their turn: what workers need first goes first.

    Parameters
    ----------
    post : Post
    engine : Engine
        Its lane ``send`` carries them.
    lasts : bool
        Go on when a worker has died.
    """

    def __init__(self, post: Post, engine: Engine, lasts: bool = False) -> None:
        self._post, self._engine, self._lasts = post, engine, lasts

    def leave(self, index: int, letter: Letter, workers: Sequence[int]) -> None:
        """Send a letter about a slice to some workers."""
        copies = Copies(letter, len(workers), self._lasts)
        for worker in workers:
            start = partial(self._post.send, letter, worker, reply_tag(index))
            self._engine.push(
                partial(copies.send, start),
                lane="send",
                priority=-index,
                name=f"answer {index} to {worker}",
                deferred=True,
            )


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
