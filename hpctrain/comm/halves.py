"""Two bytes for each value on the wire: IEEE half precision, and bfloat16.

Both round to the nearest value, ties to even, and keep what is not finite, so that the check
for an overflow, which looks at the sum, finds it on all ranks.  Sums are made in float32.
Neither has error feedback: the rounding is small against the gradient's noise.
"""

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

__all__ = ["BFloat16", "Half"]

Halves = np.ndarray[tuple[int, ...], np.dtype[np.uint16]]
Words = np.ndarray[tuple[int, ...], np.dtype[np.uint32]]

_TOO_LARGE = (127 + 16) << 23  # the bits of 65536, from where all halves are infinite or NaN
_QUIET = np.uint16(0x7FC0)  # the NaN that stands for all


class _TwoBytes(Codec):
    """What the codecs of two bytes for each value have in common."""

    residual = False

    def nbytes(self, count: int) -> int:
        """Return the size in bytes of ``count`` encoded values: two for each."""
        return 2 * count


class Half(_TwoBytes):
    """IEEE half precision: 11 significant bits, from 6e-8 to 65504.

    Larger values become infinite, those below 3e-8 zero: gradients of a scaled loss fit.

    Parameters
    ----------
    compiler : Compiler or None
        See `hpctrain.comm.kernels`.

    Notes
    -----
    One thread at a time.  A NaN stays a NaN.
    """

    name = "fp16"

    def __init__(self, compiler: Compiler | None = None) -> None:
        self._encode = Kernel(compiler, kernels.HALF_ENCODE)
        self._decode = Kernel(compiler, kernels.HALF_DECODE)
        self._add = Kernel(compiler, kernels.HALF_ADD, 1.0)
        self._magnitudes = np.empty(BLOCK, np.uint32)
        self._words = np.empty(BLOCK, np.uint32)

    def encode(self, values: Floats, out: Bytes, residual: Floats | None = None) -> None:
        """Round ``values`` into ``out``; ``residual`` is not touched."""
        check_encode(self.name, values, out, self.nbytes(values.size))
        done = self._encode(values.size, values, out)
        halves = out.view(np.uint16)
        for block in blocks(values.size, done):
            self._round(values[block], halves[block])

    def _round(self, values: Floats, out: Halves) -> None:
        """Encode one block.

        With base = 2^(e + 13) for a magnitude in [2^e, 2^(e + 1)), where e is at least -14,
        the last bit of magnitude + base is the last bit of the half: adding rounds.  The sum
        has e + 140 in its exponent, the half's digits in its low bits, and nothing between;
        one multiplication brings both to their places in the upper 16 bits.
        """
        bits = values.view(np.uint32)
        magnitudes, words = self._magnitudes[: bits.size], self._words[: bits.size]
        np.bitwise_and(bits, 0x7FFFFFFF, out=magnitudes)
        if np.maximum.reduce(magnitudes) >= _TOO_LARGE:
            with np.errstate(all="ignore"):
                np.copyto(out.view(np.float16), values, casting="same_kind")
            return
        np.bitwise_and(bits, 0x7F800000, out=words)
        np.maximum(words, 113 << 23, out=words)
        np.add(words, 13 << 23, out=words)
        sums = words.view(np.float32)
        np.add(magnitudes.view(np.float32), sums, out=sums)
        np.multiply(words, (1 << 16) + (1 << 3), out=words)
        np.bitwise_xor(magnitudes, bits, out=magnitudes)  # the sign is left
        np.add(words, magnitudes, out=words)
        np.right_shift(words, 16, out=words)
        np.copyto(out, words, casting="same_kind")
        np.add(out, -(126 << 10) % (1 << 16), out=out)

    def decode(self, data: Bytes, out: Floats) -> None:
        """Write the values of ``data`` into ``out``."""
        check_decode(self.name, data, out, self.nbytes(out.size))
        done = self._decode(out.size, data, out)
        with np.errstate(all="ignore"):
            np.copyto(out[done:], data.view(np.float16)[done:])

    def add(self, data: Bytes, out: Floats, scale: float = 1.0) -> None:
        """Add ``scale`` times the values of ``data`` to ``out``."""
        check_decode(self.name, data, out, self.nbytes(out.size))
        halves = data.view(np.float16)
        with np.errstate(all="ignore"):
            factor = np.float32(scale)
            self._add.settle(float(factor))
            done = self._add(out.size, data, out)
            for block in blocks(out.size, done):
                values = self._words[: block.stop - block.start].view(np.float32)
                np.multiply(halves[block], factor, out=values)
                np.add(out[block], values, out=out[block])


class BFloat16(_TwoBytes):
    """The upper half of a float32: 8 significant bits, the whole range of float32.

    Parameters
    ----------
    compiler : Compiler or None
        See `hpctrain.comm.kernels`.

    Notes
    -----
    One thread at a time: the codec owns its scratch.  Every NaN becomes the same NaN.

    References
    ----------
    Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", arXiv:1905.12322
    (2019).
    """

    name = "bf16"

    def __init__(self, compiler: Compiler | None = None) -> None:
        self._encode = Kernel(compiler, kernels.BFLOAT_ENCODE)
        self._decode = Kernel(compiler, kernels.BFLOAT_DECODE)
        self._add = Kernel(compiler, kernels.BFLOAT_ADD, 1.0)
        self._words = np.empty(BLOCK, np.uint32)

    def encode(self, values: Floats, out: Bytes, residual: Floats | None = None) -> None:
        """Round ``values`` into ``out``; ``residual`` is not touched."""
        check_encode(self.name, values, out, self.nbytes(values.size))
        done = self._encode(values.size, values, out)
        upper, bits = out.view(np.uint16), values.view(np.uint32)
        for block in blocks(values.size, done):
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
        check_decode(self.name, data, out, self.nbytes(out.size))
        done = self._decode(out.size, data, out)
        upper, bits = data.view(np.uint16), out.view(np.uint32)
        for block in blocks(out.size, done):
            self._widen(upper[block], bits[block])

    def add(self, data: Bytes, out: Floats, scale: float = 1.0) -> None:
        """Add ``scale`` times the values of ``data`` to ``out``."""
        check_decode(self.name, data, out, self.nbytes(out.size))
        upper = data.view(np.uint16)
        with np.errstate(all="ignore"):
            factor = np.float32(scale)
            self._add.settle(float(factor))
            done = self._add(out.size, data, out)
            for block in blocks(out.size, done):
                words = self._words[: block.stop - block.start]
                self._widen(upper[block], words)
                values = words.view(np.float32)
                np.multiply(values, factor, out=values)
                np.add(out[block], values, out=out[block])

    @staticmethod
    def _widen(upper: Halves, words: Words) -> None:
        np.copyto(words, upper)
        np.left_shift(words, 16, out=words)
