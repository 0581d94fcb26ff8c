"""What was made lately, by key: a bounded store that counts."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["KINDS_KEPT", "Recent"]

T = TypeVar("T")
KINDS_KEPT = 64  # captured kinds of call (shapes, modes) kept for each function


class Recent(Generic[T]):
    """Keeps the ``limit`` things that were used last.

    Attributes
    ----------
    made : int
        How many were made, again after they were dropped too.
    """

    def __init__(self, limit: int = KINDS_KEPT) -> None:
        self.limit, self.made = limit, 0
        self._kept: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what is kept under ``key``; make it if it is not there."""
        found = self._kept.get(key)
        if found is None:
            self.made += 1
            found = self._kept[key] = make()
            if len(self._kept) > self.limit:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[T]:
        return iter(self._kept.values())
