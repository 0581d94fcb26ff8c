"""Who keeps the state of the optimizer for a group of ranks, if these do not."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

__all__ = ["Remote"]


class Remote(Protocol):
    """Who keeps the optimizer's state for this group of ranks."""

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for the group."""

    def fetch(self) -> dict[str, np.ndarray]:
        """Return the state in whole buffers, on the rank that leads."""

    def store(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Give it ``weights`` and the state in whole buffers, those of the rank that leads."""
