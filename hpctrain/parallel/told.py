"""What a server has told its workers: they may have other parameters than it has itself."""

from typing import Any

import numpy as np

from hpctrain.comm.compress import Codec
from hpctrain.comm.twobit import TwoBit

__all__ = ["Told"]

Flat = np.ndarray[Any, np.dtype[Any]]
_SAMPLE = 2**14  # changes of a slice that are looked at, at most
_RUN = 64  # of them lie together: some lines of the cache, not one for each
_ADAPTED = 0.95  # of the mean change: below it, lest equal changes all stay under it


class Told:
    """Copies of the parameters as workers have them.

    What a codec has not sent of a change is not lost: the next change is taken against these
    copies. So there is error feedback without a residual.

    Parameters
    ----------
    weights : array, shape (n,)
        The server's own.
    workers : sequence of int, or None
        None: all are told the same, and one copy serves for all.
    """

    def __init__(self, weights: Flat, workers: Any) -> None:
        self._weights = weights
        self._copies = {w: weights.copy() for w in workers or (None,)}
        self._one = workers is None

    def of(self, worker: int) -> Flat:
        """Return the parameters as a worker has them."""
        return self._copies[None if self._one else worker]

    def whole(self, worker: int, a: int, b: int) -> None:
        """Note that elements a up to b have been told as they are."""
        self.of(worker)[a:b] = self._weights[a:b]

    def encode(self, codec: Codec, worker: int, a: int, b: int, out: Flat) -> float:
        """Encode the change of elements a up to b since they were told; return its scale."""
        copy, weights = self.of(worker)[a:b], self._weights[a:b]
        if not isinstance(codec, TwoBit):
            codec.encode(weights - copy, out)
            codec.add(out, copy)
            return 1.0
        step = _mean_change(_sample(weights) - _sample(copy))
        step = _ADAPTED * (step or _mean_change(weights - copy))
        # The threshold is in units of the gradient; a change has another size.
        scale = step / codec.threshold if step > 0 and np.isfinite(step) else 1.0
        codec.move(copy, weights, out, scale)
        return scale


def _sample(values: Flat) -> Flat:
    """Return all values, or runs of them from all over."""
    if values.size <= _SAMPLE:
        return values
    runs = _SAMPLE // _RUN
    apart = values.size // runs
    return values[: runs * apart].reshape(runs, apart)[:, :_RUN]


def _mean_change(change: Flat) -> float:
    """Return the mean size of the changes that are not zero; 0 if all are."""
    return float(np.abs(change).sum()) / max(int(np.count_nonzero(change)), 1)
