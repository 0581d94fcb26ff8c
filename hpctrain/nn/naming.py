"""Names for display: each block gives the blocks made in its scope a prefix and a number.

Names that anything depends on are structural instead (attribute paths). There is no counter
for the whole process, so a model made twice has the same names both times.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["Scope"]


class Scope:
    """The prefix of one block, and how many children of each kind it has named.

    Parameters
    ----------
    prefix : str or None
        Chosen by the user; None takes ``hint`` and a number.
    hint : str
        The kind of block.
    """

    def __init__(self, prefix: str | None, hint: str) -> None:
        parent = _SCOPE.get()
        if prefix is None:
            prefix = f"{hint}{parent.count(hint) if parent else 0}_"
        self.prefix: str = parent.prefix + prefix if parent else prefix
        self._counts: dict[str, int] = {}

    def count(self, hint: str) -> int:
        """Return how many blocks of this kind have been counted before, and count one more."""
        number = self._counts.get(hint, 0)
        self._counts[hint] = number + 1
        return number

    @contextmanager
    def entered(self) -> Iterator["Scope"]:
        """Name the blocks that are made inside the ``with`` block."""
        token = _SCOPE.set(self)
        try:
            yield self
        finally:
            _SCOPE.reset(token)


_SCOPE: ContextVar[Scope | None] = ContextVar("hpctrain_scope", default=None)
