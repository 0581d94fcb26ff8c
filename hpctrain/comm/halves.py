"""Two bytes for each value on the wire: IEEE half precision, and bfloat16.

Both round to the nearest value, ties to even, and keep what is not finite, so that the check
for an overflow, which looks at the sum, finds it on all ranks.  Sums are made in float32.
Neither needs error feedback: the rounding is unbiased, and small against the gradient's noise.
"""

import numpy as np

from hpctrain.comm.encoding import BLOCK, Bytes, Floats, blocks, check

__all__ = ["BFloat16", "Half"]

_QUIET = np.uint16(0x7FC0)  # the NaN that stands for all


class Half:
    """IEEE half precision: 11 significant bits, from 6e-8 to 65504.

    Larger values become infinite, those below 3e-8 zero: gradients of a scaled loss fit.

    Notes
    -----
    One thread at a time.  ``values`` that are NaN stay NaN.
    """

    name = "fp16"
    residual = False

    def nbytes(self, count: int) -> int:
        """Return the size in bytes of ``count`` encoded values: two for each."""
        return 2 * count

    def encode(self, values: Floats, out: Bytes, residual: Floats | None = None) -> None:
        """Round ``values`` into ``out``; ``residual`` is not touched."""
        check(self.name, values, out, self.nbytes(values.size))
        with np.errstate(all="ignore"):
            np.copyto(out.view(np.float16), values, casting="same_kind")

    def decode(self, data: Bytes, out: Floats) -> None:
        """Write the values of ``data`` into ``out``."""
        check(self.name, out, data, self.nbytes(out.size))
        np.copyto(out, data.view(np.float16))

    def add(self, data: Bytes, out: Floats) -> None:
        """Add the values of ``data`` to ``out``."""
        check(self.name, out, data, self.nbytes(out.size))
        with np.errstate(all="ignore"):
            np.add(out, data.view(np.float16), out=out)


class BFloat16:
    """The upper half of a float32: 8 significant bits, the whole range of float32.

    Notes
    -----
    One thread at a time: the codec owns its scratch.  Every NaN becomes the same NaN.

    References
    ----------
    Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", arXiv:1905.12322
    (2019).
    """

    name = "bf16"
    residual = False

    def __init__(self) -> None:
        self._words = np.empty(BLOCK, np.uint32)

    def nbytes(self, count: int) -> int:
        """Return the size in bytes of ``count`` encoded values: two for each."""
        return 2 * count

    def encode(self, values: Floats, out: Bytes, residual: Floats | None = None) -> None:
        """Round ``values`` into ``out``; ``residual`` is not touched."""
        check(self.name, values, out, self.nbytes(values.size))
        upper, bits = out.view(np.uint16), values.view(np.uint32)
        for block in blocks(values.size):
            words = self._words[: block.stop - block.start]
            # Half a unit less one, and one more where the kept part is odd: ties go to even.
            np.right_shift(bits[block], 16, out=words)
            np.bitwise_and(words, 1, out=words)
            np.add(words, bits[block], out=words)
            np.add(words, 0x7FFF, out=words)
            np.right_shift(words, 16, out=words)
            np.copyto(upper[block], words, casting="same_kind")
            # A carry would run through the payload of a NaN into its exponent and sign.
            if np.isnan(np.maximum.reduce(values[block])):
                upper[block][np.isnan(values[block])] = _QUIET

    def decode(self, data: Bytes, out: Floats) -> None:
        """Write the values of ``data`` into ``out``."""
        check(self.name, out, data, self.nbytes(out.size))
        upper, bits = data.view(np.uint16), out.view(np.uint32)
        for block in blocks(out.size):
            self._widen(upper[block], bits[block])

    def add(self, data: Bytes, out: Floats) -> None:
        """Add the values of ``data`` to ``out``."""
        check(self.name, out, data, self.nbytes(out.size))
        upper = data.view(np.uint16)
        with np.errstate(all="ignore"):
            for block in blocks(out.size):
                words = self._words[: block.stop - block.start]
                self._widen(upper[block], words)
                np.add(out[block], words.view(np.float32), out=out[block])

    @staticmethod
    def _widen(
        upper: np.ndarray[tuple[int], np.dtype[np.uint16]],
        words: np.ndarray[tuple[int], np.dtype[np.uint32]],
    ) -> None:
        np.copyto(words, upper)
        np.left_shift(words, 16, out=words)
