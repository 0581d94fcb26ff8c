"""Letters that come unasked, handed out when they are whole."""

from collections.abc import Collection
from time import perf_counter_ns

from hpctrain.comm.letter import Letter
from hpctrain.comm.post import Post
from hpctrain.comm.request import Handle
from hpctrain.errors import LostRankError
from hpctrain.trace import Recorder

__all__ = ["Inbox"]


class Inbox:
    """Letters with one tag, those of one sender in their order. For one thread.

    Parameters
    ----------
    post : Post
    tag : int
    recorder : Recorder, optional
        Gets a span for each letter, from its first byte to its last.
    """

    def __init__(self, post: Post, tag: int, recorder: Recorder | None = None) -> None:
        self._post, self._tag, self._recorder = post, tag, recorder
        self._coming: list[tuple[int, Letter, Handle, int]] = []

    def take(self, dead: Collection[int] = ()) -> list[tuple[int, Letter]]:
        """Return sender and letter of what has come since the last call, and is whole.

        ``dead`` are ranks from which nothing is taken any longer.
        """
        arrivals, now = self._post.arrivals(self._tag), perf_counter_ns()
        self._coming += [(*arrival, now) for arrival in arrivals]
        late: set[int] = set()
        left, found = [], []
        for source, letter, handle, begun in self._coming:
            if source in dead:
                continue  # nor is the memory used again: MPI may have kept hold of it
            if source in late or not self._is_whole(handle):
                late.add(source)
                left.append((source, letter, handle, begun))
            else:
                found.append((source, letter))
                self._note(source, begun)
        self._coming = left
        return found

    def _note(self, source: int, begun: int) -> None:
        if self._recorder is not None and self._recorder.enabled:
            self._recorder.span("receive", f"receive from {source}", begun, perf_counter_ns())

    def _is_whole(self, handle: Handle) -> bool:
        try:
            return handle.test()
        except LostRankError:
            if self._post.deaths is None:
                raise
            return False  # and is not asked again when it is known who has died
