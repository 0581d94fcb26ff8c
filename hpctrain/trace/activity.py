"""What the threads of a rank are doing right now, in words."""

from collections.abc import Callable
from threading import enumerate as threads
from threading import get_ident
from time import monotonic
from typing import NamedTuple

__all__ = ["Activity", "Doing"]


class Doing(NamedTuple):
    """One thing that goes on."""

    thread: str
    what: str
    seconds: float


class Activity:
    """A board on which threads write what they are doing, for whoever asks why nothing moves.

    Notes
    -----
    May be used from any thread without a lock: changing one entry of a dictionary is atomic.
    A block costs one or two microseconds.

    Examples
    --------
    >>> activity = Activity()
    >>> with activity.doing("reading train-003.h5"):
    ...     [doing.what for doing in activity.now()]
    ['reading train-003.h5']
    """

    def __init__(self) -> None:
        self._open: dict[int, _Block] = {}

    def doing(self, what: str | Callable[[], str]) -> "_Block":
        """Return a context manager; while its block runs, this thread does ``what``.

        Parameters
        ----------
        what : str or callable
            A callable is called only when somebody asks, on that one's thread.
        """
        return _Block(self._open, what)

    def now(self) -> list[Doing]:
        """Return what goes on, the outer before the inner things of a thread."""
        names = {thread.ident: thread.name for thread in threads()}
        now = monotonic()
        return [
            Doing(names.get(block.thread, "unknown"), block.text(), now - block.start)
            for block in self._open.copy().values()
        ]


class _Block:
    """The block of ``Activity.doing``."""

    __slots__ = ("_open", "_what", "start", "thread")

    def __init__(self, board: dict[int, "_Block"], what: str | Callable[[], str]) -> None:
        self._open = board
        self._what = what
        self.thread = 0
        self.start = 0.0

    def text(self) -> str:
        return self._what if isinstance(self._what, str) else self._what()

    def __enter__(self) -> None:
        self.thread = get_ident()
        self.start = monotonic()
        self._open[id(self)] = self

    def __exit__(self, *_: object) -> None:
        del self._open[id(self)]
