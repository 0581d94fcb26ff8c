"""Functions that are called around the forward pass of a block."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Hook"]


@dataclass(frozen=True, slots=True)
class Hook:
    """A registered hook; `detach` takes it away."""

    hooks: dict[int, Callable[..., None]]
    key: int

    def detach(self) -> None:
        """Take the hook away, if it is still there."""
        self.hooks.pop(self.key, None)
