"""Letters that come unasked, handed out when they are whole."""

from collections.abc import Collection

from hpctrain.comm.letter import Letter
from hpctrain.comm.post import Post
from hpctrain.comm.request import Handle
from hpctrain.errors import LostRankError

__all__ = ["Inbox"]


class Inbox:
    """Letters with one tag, those of one sender in their order. For one thread.

    Parameters
    ----------
    post : Post
    tag : int
    """

    def __init__(self, post: Post, tag: int) -> None:
        self._post, self._tag = post, tag
        self._coming: list[tuple[int, Letter, Handle]] = []

    def take(self, dead: Collection[int] = ()) -> list[tuple[int, Letter]]:
        """Return sender and letter of what has come since the last call, and is whole.

        ``dead`` are ranks from which nothing is taken any longer.
        """
        self._coming += self._post.arrivals(self._tag)
        late: set[int] = set()
        left, found = [], []
        for source, letter, handle in self._coming:
            if source in dead:
                continue  # nor is the memory used again: MPI may have kept hold of it
            if source in late or not self._is_whole(handle):
                late.add(source)
                left.append((source, letter, handle))
            else:
                found.append((source, letter))
        self._coming = left
        return found

    def _is_whole(self, handle: Handle) -> bool:
        try:
            return handle.test()
        except LostRankError:
            if self._post.deaths is None:
                raise
            return False  # and is not asked again when it is known who has died
