"""Two bits for each value on the wire: more than the threshold, less than minus it, or neither.

This is MXNet's gradient compression.  What is not sent stays in the residual and is added to
the next gradient, so nothing is lost, only late: *error feedback*.
"""

import math

import numpy as np

from hpctrain.comm import kernels
from hpctrain.comm.encoding import (
    BLOCK,
    Bytes,
    Codec,
    Floats,
    blocks,
    check_decode,
    check_encode,
)
from hpctrain.comm.kernels import Compiler, Kernel
from hpctrain.errors import ConfigError

__all__ = ["TwoBit"]

_SAMPLE = 2**14  # differences of a slice that are looked at, at most
_RUN = 64  # of them lie together: some lines of the cache, not one for each
_ADAPTED = 0.95  # of the mean difference: below it, lest equal ones all stay under it


class TwoBit(Codec):
    """Send +t, -t or nothing of each value, and keep the rest for the next time.

    A gradient g is added to its residual r.  Where r >= t, +t is sent and r becomes r - t;
    where r <= -t, -t is sent and r becomes r + t; elsewhere nothing is sent.  A byte holds
    four values: the upper four bits say which are +t, the lower four which are -t, the first
    value highest; both bits set say *not finite*.

    Parameters
    ----------
    threshold : float
        t, above 0 and finite, in units of the gradient.
    compiler : Compiler or None
        See `hpctrain.comm.kernels`.

    Raises
    ------
    ConfigError
        If the threshold is not a positive finite number.

    Notes
    -----
    A value that is not finite is decoded as NaN, so that the check of the sum finds it on all
    ranks; its residual begins again from 0, lest one bad step spoil all that follow.

    One thread at a time: the codec owns its scratch.

    References
    ----------
    Seide, Fu, Droppo, Li and Yu, "1-Bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", Interspeech (2014) 1058-1062.  The
    rule with a threshold: Apache MXNet, "Gradient Compression" (2017), from Strom, "Scalable
    Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech (2015).
    """

    name = "2bit"
    residual = True

    def __init__(self, threshold: float = 0.5, compiler: Compiler | None = None) -> None:
        with np.errstate(all="ignore"):
            self._threshold = np.float32(threshold)
        if not 0 < self._threshold < math.inf:
            raise ConfigError(
                f"exchange: got 2-bit threshold {threshold}, needed a finite number above 0 "
                "that float32 can hold"
            )
        self._compiler = compiler
        self._encode = Kernel(compiler, kernels.TWO_BIT_ENCODE, threshold)
        self._decode = Kernel(compiler, kernels.TWO_BIT_DECODE, threshold)
        self._add = Kernel(compiler, kernels.TWO_BIT_ADD, threshold, 1.0)
        self._move = Kernel(compiler, kernels.TWO_BIT_MOVE, threshold, 1.0)
        self._table = _table(self._threshold)
        self._values = np.empty(BLOCK, np.float32)
        self._index = np.empty(BLOCK // 4, np.intp)
        self._masks = np.empty((BLOCK // 4, 2, 4), np.bool_)  # what packbits packs
        self._above = np.empty(BLOCK, np.bool_)
        self._below = np.empty(BLOCK, np.bool_)

    @property
    def threshold(self) -> float:
        """What is sent of a value at a time."""
        return float(self._threshold)

    def of_sums(self, ranks: int) -> "TwoBit":
        """Return a codec whose threshold is ``ranks`` times as large.

        So large can a sum be, and so what is owed of the sums stays below it: with the
        threshold of the terms it would grow for ever where the ranks agree.
        """
        return TwoBit(float(self._threshold) * ranks, self._compiler)

    def nbytes(self, count: int) -> int:
        """Return the size in bytes of ``count`` encoded values: one for four."""
        return -(-count // 4)

    def encode(self, values: Floats, out: Bytes, residual: Floats | None = None) -> None:
        """Add ``values`` to ``residual``, and move what is large enough from there to ``out``.

        Without a residual what is not sent is lost.
        """
        check_encode(self.name, values, out, self.nbytes(values.size), residual)
        rest = np.zeros_like(values) if residual is None else residual
        done = self._encode(values.size, values, out, rest)
        with np.errstate(all="ignore"):
            for block in blocks(values.size, done):
                np.add(rest[block], values[block], out=rest[block])
                self._send(rest[block], out[block.start // 4 : -(-block.stop // 4)])

    def _send(self, rest: Floats, codes: Bytes) -> None:
        """Encode sums, a block at most; what is sent is taken off them."""
        count, above, below = rest.size, self._above, self._below
        np.greater_equal(rest, self._threshold, out=above[:count])
        np.less_equal(rest, -self._threshold, out=below[:count])
        bad = None
        if not np.isfinite(np.add.reduce(rest)):
            bad = np.flatnonzero(~np.isfinite(rest))
            above[bad] = below[bad] = True
        padded = 4 * codes.size
        above[count:padded] = below[count:padded] = False
        # Four truth values move as one word.
        words = self._masks[: codes.size].view(np.uint32)[..., 0]
        words[:, 0] = above[:padded].view(np.uint32)
        words[:, 1] = below[:padded].view(np.uint32)
        codes[:] = np.packbits(self._masks[: codes.size])
        sent = self._values[:count]
        self._look_up(codes, sent)
        np.subtract(rest, sent, out=rest)
        if bad is not None:
            rest[bad] = 0

    def decode(self, data: Bytes, out: Floats) -> None:
        """Write the values of ``data`` into ``out``."""
        check_decode(self.name, data, out, self.nbytes(out.size))
        done = self._decode(out.size, data, out)
        for block in blocks(out.size, done):
            self._look_up(data[block.start // 4 : -(-block.stop // 4)], out[block])

    def add(self, data: Bytes, out: Floats, scale: float = 1.0) -> None:
        """Add ``scale`` times the values of ``data`` to ``out``."""
        check_decode(self.name, data, out, self.nbytes(out.size))
        with np.errstate(all="ignore"):
            factor = np.float32(scale)
            self._add.settle(self.threshold, float(factor))
            done = self._add(out.size, data, out)
            for block in blocks(out.size, done):
                values = self._values[: block.stop - block.start]
                self._look_up(data[block.start // 4 : -(-block.stop // 4)], values)
                np.multiply(values, factor, out=values)
                np.add(out[block], values, out=out[block])

    def move(self, known: Floats, values: Floats, out: Bytes) -> float:
        """Encode what leads from ``known`` to ``values``, in units that fit its size.

        The threshold is in units of the gradient.  The returned scale, by which differences
        are divided, makes of it somewhat less than their mean.
        """
        check_encode(self.name, values, out, self.nbytes(values.size), known)
        with np.errstate(all="ignore"):
            factor = self._fitting(known, values)
            self._move.settle(self.threshold, float(factor))
            done = self._move(values.size, values, out, known)
            for block in blocks(values.size, done):
                change = values[block] - known[block]
                change /= factor
                codes = out[block.start // 4 : -(-block.stop // 4)]
                self._send(change, codes)
                self._look_up(codes, change)
                change *= factor
                known[block] += change
        return float(factor)

    def _fitting(self, known: Floats, values: Floats) -> np.float32:
        mean = _mean_change(_sample(values) - _sample(known)) or _mean_change(values - known)
        scale = np.float32(_ADAPTED * mean / self.threshold)
        return scale if 0 < scale < math.inf else np.float32(1)

    def _look_up(self, codes: Bytes, out: Floats) -> None:
        """Write the values of one block of codes."""
        whole = out.size // 4
        index = self._index[: codes.size]
        np.copyto(index, codes)
        # With mode="clip" take writes where it is told; with "raise" it would use a buffer.
        self._table.take(index[:whole], 0, out=out[: 4 * whole].reshape(-1, 4), mode="clip")
        if whole < codes.size:
            out[4 * whole :] = self._table[index[whole]][: out.size - 4 * whole]


def _table(threshold: np.float32) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return the four values of each byte, shape (256, 4)."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)).reshape(256, 2, 4)
    above, below = bits[:, 0], bits[:, 1]
    signs = above.astype(np.float32) - below
    return np.where(above & below, np.float32(np.nan), signs * threshold).astype(np.float32)


def _sample(values: Floats) -> Floats:
    """Return all values, or runs of them from all over."""
    if values.size <= _SAMPLE:
        return values
    runs = _SAMPLE // _RUN
    apart = values.size // runs
    return values[: runs * apart].reshape(runs, apart)[:, :_RUN]


def _mean_change(change: Floats) -> float:
    """Return the mean size of the changes that are not zero; 0 if all are."""
    return float(np.abs(change).sum()) / max(int(np.count_nonzero(change)), 1)
