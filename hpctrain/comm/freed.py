"""What ranks hold together, and give back together."""

from abc import ABC, abstractmethod
from typing import Self


class Freed(ABC):
    """What a ``with`` frees at its end, unless this rank leaves it by an exception.

    Freeing is collective: a rank that fails must not wait in it.
    """

    @abstractmethod
    def free(self) -> None:
        """Give back what is held; collective."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.free()
