"""The factor on the loss that keeps small gradients from vanishing in halves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.errors import ConfigError

__all__ = ["LossScale"]

LARGEST, SMALLEST = 2.0**24, 2.0**-14


@dataclass(slots=True)
class LossScale:
    """A loss scale, constant or following what the gradients can bear.

    Parameters
    ----------
    value : float
        The scale now; more than 0.
    dynamic : bool
        Halve it after a step whose gradient was not finite, double it after ``interval`` good
        steps in a row.
    interval : int
    good : int
        Good steps since the last change.
    skipped : int
        Steps that were not good, in all.

    References
    ----------
    Micikevicius et al., "Mixed precision training", ICLR 2018.
    """

    value: float = 1.0
    dynamic: bool = False
    interval: int = 2000
    good: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.value <= LARGEST or self.interval < 1:
            raise ConfigError(
                f"loss scale: got {self.value} and an interval of {self.interval}, needed a "
                f"scale above 0 and up to {LARGEST:.0f} and an interval of at least 1"
            )

    def update(self, good: bool) -> None:
        """Take into account whether the gradient of a step was finite."""
        self.skipped += not good
        if not self.dynamic:
            return
        self.good = self.good + 1 if good else 0
        if not good:
            self.value = max(self.value / 2, SMALLEST)
        elif self.good == self.interval:
            self.value, self.good = min(self.value * 2, LARGEST), 0

    def plain(self) -> dict[str, float]:
        """Return what a checkpoint keeps."""
        return {"value": self.value, "good": self.good, "skipped": self.skipped}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `plain` returned; a constant scale stays what it is."""
        self.skipped = int(state["skipped"])
        if self.dynamic:
            self.value, self.good = float(state["value"]), int(state["good"])
