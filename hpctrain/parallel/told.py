"""What a server has told its workers: they may have other parameters than it has itself."""

from typing import Any

import numpy as np

from hpctrain.comm.compress import Codec

__all__ = ["Told"]

Flat = np.ndarray[Any, np.dtype[Any]]


class Told:
    """Copies of the parameters as workers have them.

    What a codec has not sent of a change is not lost: the next change is taken against these
    copies.

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
        return codec.move(self.of(worker)[a:b], self._weights[a:b], out)
