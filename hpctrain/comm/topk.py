"""Only the largest values on the wire, each with its place; the rest waits for its turn."""

import numpy as np

from hpctrain.comm.encoding import Bytes, Codec, Floats, check_decode, check_encode
from hpctrain.errors import ConfigError

__all__ = ["TopK"]

Indices = np.ndarray[tuple[int, ...], np.dtype[np.intp]]
Magnitudes = np.ndarray[tuple[int, ...], np.dtype[np.int32]]

_SAMPLE = 4096  # values that the threshold is guessed from
_STRIDE = 61  # prime, so that a sample does not run down one column of a matrix
_INFINITE = 0x7F800000  # the bits of infinity; those of a NaN are larger


class TopK(Codec):
    """Send the k values of largest magnitude, and keep the others for the next time.

    A gradient is added to its residual.  The k = max(1, round(ratio n)) largest of the n sums
    are sent, of equal ones those of lower index, and their residual becomes 0.  The encoding
    is k ascending int32 indices, then k float32 values; it always has the same size.

    Parameters
    ----------
    ratio : float
        Share of the values that is sent, above 0 and at most 1.  Above 1/2 the encoding is
        larger than the values.

    Raises
    ------
    ConfigError
        If the ratio is not in that range.

    Notes
    -----
    A value that is not finite counts as largest of all, so the check of the sum finds it on
    all ranks; all residuals that are not finite begin again from 0, lest one bad step spoil
    all that follow.

    One thread at a time: the codec owns its scratch.

    References
    ----------
    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP (2017)
    440-445.  Convergence with the memory: Stich, Cordonnier and Jaggi, "Sparsified SGD with
    Memory", NeurIPS (2018).
    """

    name = "topk"
    residual = True

    def __init__(self, ratio: float = 0.01) -> None:
        if not 0 < ratio <= 1:
            raise ConfigError(
                f"exchange: got top-k ratio {ratio}, needed a share above 0 and at most 1"
            )
        self._ratio = ratio
        self._bits = np.empty(0, np.int32)
        self._mask = np.empty(0, np.bool_)

    def kept(self, count: int) -> int:
        """Return k, how many of ``count`` values are sent."""
        return min(count, max(1, round(self._ratio * count)))

    def nbytes(self, count: int) -> int:
        """Return the size in bytes of ``count`` encoded values: eight for each kept one."""
        return 8 * self.kept(count)

    def encode(self, values: Floats, out: Bytes, residual: Floats | None = None) -> None:
        """Add ``values`` to ``residual``, and move the largest sums from there to ``out``.

        Without a residual what is not sent is lost.
        """
        check_encode(self.name, values, out, self.nbytes(values.size), residual)
        k = self.kept(values.size)
        if not k:
            return
        self._grow(values.size)
        rest = np.zeros_like(values) if residual is None else residual
        with np.errstate(all="ignore"):
            np.add(rest, values, out=rest)
        bits = self._bits[: values.size]
        np.bitwise_and(rest.view(np.int32), 0x7FFFFFFF, out=bits)
        chosen = self._largest(bits, k)
        out[: 4 * k].view(np.int32)[:] = chosen
        out[4 * k :].view(np.float32)[:] = rest[chosen]
        if bits[chosen].max() >= _INFINITE:
            rest[bits >= _INFINITE] = 0
        rest[chosen] = 0

    def _grow(self, count: int) -> None:
        if self._bits.size < count:
            self._bits = np.empty(count, np.int32)
            self._mask = np.empty(count, np.bool_)

    def _largest(self, bits: Magnitudes, k: int) -> Indices:
        """Return the ascending indices of the k largest, of equal ones the first."""
        mask = self._mask[: bits.size]
        np.greater_equal(bits, _guess(bits, k), out=mask)
        indices = np.flatnonzero(mask)
        if indices.size < k:
            np.greater_equal(bits, _kth(bits, k), out=mask)
            indices = np.flatnonzero(mask)
        if indices.size == k:
            return indices
        found = bits[indices]
        least = _kth(found, k)
        keep = found > least
        equal = np.flatnonzero(found == least)
        keep[equal[: k - np.count_nonzero(keep)]] = True
        return indices[keep]

    def decode(self, data: Bytes, out: Floats) -> None:
        """Write the values of ``data`` into ``out``, and 0 between them."""
        indices, values = self._parts(data, out)
        out[:] = 0
        out[indices] = values

    def add(self, data: Bytes, out: Floats, scale: float = 1.0) -> None:
        """Add ``scale`` times the k values of ``data`` to ``out``, at their cost alone."""
        indices, values = self._parts(data, out)
        with np.errstate(all="ignore"):
            out[indices] += np.float32(scale) * values

    def _parts(self, data: Bytes, out: Floats) -> tuple[Magnitudes, Floats]:
        check_decode(self.name, data, out, self.nbytes(out.size))
        half = data.size // 2
        return data[:half].view(np.int32), data[half:].view(np.float32)


def _kth(bits: Magnitudes, k: int) -> np.int32:
    """Return the k-th largest."""
    place = bits.size - k
    least: np.int32 = np.partition(bits, place)[place]
    return least


def _guess(bits: Magnitudes, k: int) -> np.int32:
    """Return a threshold that somewhat more than k values reach, most likely."""
    sample = bits[:: min(_STRIDE, -(-bits.size // _SAMPLE))]
    wanted = sample.size * k / bits.size
    return _kth(sample, min(sample.size, round(wanted + 3 * wanted**0.5) + 1))
