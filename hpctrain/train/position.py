"""Where a run is: what a checkpoint must hold besides arrays, and what a step adds to."""

from dataclasses import asdict, dataclass
from typing import Any

from hpctrain.errors import CheckpointError

__all__ = ["Position"]


@dataclass(slots=True)
class Position:
    """The next step of a run, and the sums of the epoch so far.

    Attributes
    ----------
    epoch, batch : int
        The next batch is number ``batch`` of the epoch ``epoch``; both from 0.
    step : int
        Steps made so far, those that were skipped included.
    loss_sum, correct : float
        Over the samples of this epoch so far, all ranks, without those of skipped steps.
    count : int
        How many these are.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    correct: float = 0.0
    count: int = 0

    def add(self, loss_sum: float, correct: float, count: int, batches: int = 1) -> None:
        """Go on by one step of so many batches."""
        self.batch += batches
        self.step += 1
        self.include(loss_sum, correct, count)

    def include(self, loss_sum: float, correct: float, count: int) -> None:
        """Add samples to the sums that belong to steps made already."""
        self.loss_sum += loss_sum
        self.correct += correct
        self.count += count

    def next_epoch(self) -> None:
        """Go on to the first batch of the next epoch."""
        self.epoch, self.batch = self.epoch + 1, 0
        self.loss_sum, self.correct, self.count = 0.0, 0.0, 0

    def plain(self) -> dict[str, Any]:
        """Return this as JSON-able data."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Position":
        """Return what `plain` was made of."""
        try:
            return cls(**plain)
        except TypeError as error:
            raise CheckpointError(f"checkpoint: its position cannot be read: {error}") from None
