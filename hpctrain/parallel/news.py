"""What workers hear of each other: the riders of a step, or what came since they last asked."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain.parallel.work import BAD, CORRECT, COUNT, LAG, LOSS, STOP

__all__ = ["News"]

_COUNTED = [LOSS, CORRECT, COUNT]


class News:
    """Losses, counts and wishes to stop, between workers that may not be in step.

    Parameters
    ----------
    workers : sequence of int
    sync : bool
        Whether all workers are in step: then the sums of a step are the news.

    Attributes
    ----------
    stop_at : int
        How many steps all make in all, once one wishes to stop; 0 if none does.
    skip : bool
        Whether the step is left out.
    scale_of_step : float
        The factor on its loss.
    """

    def __init__(self, workers: Sequence[int], sync: bool) -> None:
        self._sync = sync
        self._sums = {worker: np.zeros(len(_COUNTED)) for worker in workers}
        self.stop_at = 0
        self.wish = False  # of this server
        self.skip = False
        self.scale_of_step = 1.0

    def note(self, riders: Any, newest: int) -> None:
        """Take in the riders of one push.

        Parameters
        ----------
        riders : array
        newest : int
            The last step that any worker has pushed.
        """
        for sums in self._sums.values() if not riders[BAD] else ():
            sums += np.asarray(riders[_COUNTED], np.float64)
        if (riders[STOP] > 0 or self.wish) and not self.stop_at:
            # A worker takes results LAG steps late: this is the first step that none has begun.
            self.stop_at = newest + LAG + 2

    def take(self, worker: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return losses, right answers and samples that a worker has not heard of yet."""
        found, self._sums[worker] = self._sums[worker], np.zeros(len(_COUNTED))
        return found

    def riders(self, summed: Any, worker: int) -> Any:
        """Return the riders of an answer.

        Parameters
        ----------
        summed : array
            Those of the step, or of the last push.
        worker : int
            Who gets them.
        """
        found = summed.copy()
        if self._sync:
            found[STOP] += self.wish
            if self.skip and not found[BAD]:
                found[BAD] = 0.25  # no rank is bad, but their sum is
            return found
        found[_COUNTED] = self.take(worker)
        found[STOP] = self.stop_at > 0
        return found
