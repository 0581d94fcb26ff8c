"""Two bytes for each value on the wire: IEEE half precision, and bfloat16.

Both round to the nearest value, ties to even, and keep what is not finite, so that the check
for an overflow, which looks at the sum, finds it on all ranks.  Sums are made in float32.
Neither has error feedback: the rounding is small against the gradient's noise.
"""

from abc import abstractmethod

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

_TOO_LARGE = (127 + 16) << 23  # the bits of 65536, from where all halves are infinite or NaN
_QUIET = np.uint16(0x7FC0)  # the NaN that stands for all


class _TwoBytes(Codec):
    """What the codecs of two bytes for each value have in common.

    Parameters
    ----------
    compiler : Compiler or None
        See `hpctrain.comm.kernels`.
    encode, decode, add : str
        Loops over as many values as are compiled.
    """

    residual = False

    def __init__(self, compiler: Compiler | None, encode: str, decode: str, add: str) -> None:
        self._encode = Kernel(compiler, encode)
        self._decode = Kernel(compiler, decode)
        self._add = Kernel(compiler, add, 1.0)
        self._words = np.empty(BLOCK, np.uint32)

    def nbytes(self, count: int) -> int:
        """Return the size in bytes of ``count`` encoded values: two for each."""
        return 2 * count

    def encode(self, values: Floats, out: Bytes, residual: Floats | None = None) -> None:
        """Round ``values`` into ``out``; ``residual`` is not touched."""
        check_encode(self.name, values, out, self.nbytes(values.size))
        done = self._encode(values.size, values, out)
        codes = out.view(np.uint16)
        with np.errstate(all="ignore"):
            for block in blocks(values.size, done):
                self._round(values[block], codes[block])

    def decode(self, data: Bytes, out: Floats) -> None:
        """Write the values of ``data`` into ``out``."""
        check_decode(self.name, data, out, self.nbytes(out.size))
        done = self._decode(out.size, data, out)
        codes = data.view(np.uint16)
        with np.errstate(all="ignore"):
            for block in blocks(out.size, done):
                self._widen(codes[block], out[block])

    def add(self, data: Bytes, out: Floats, scale: float = 1.0) -> None:
        """Add ``scale`` times the values of ``data`` to ``out``."""
        check_decode(self.name, data, out, self.nbytes(out.size))
        codes = data.view(np.uint16)
        with np.errstate(all="ignore"):
            factor = np.float32(scale)
            self._add.settle(float(factor))
            done = self._add(out.size, data, out)
            for block in blocks(out.size, done):
                values = self._words[: block.stop - block.start].view(np.float32)
                self._widen(codes[block], values)
                np.multiply(values, factor, out=values)
                np.add(out[block], values, out=out[block])

    @abstractmethod
    def _round(self, values: Floats, out: Halves) -> None:
        """Encode one block."""

    @abstractmethod
    def _widen(self, codes: Halves, out: Floats) -> None:
        """Decode one block."""


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
        super().__init__(compiler, kernels.HALF_ENCODE, kernels.HALF_DECODE, kernels.HALF_ADD)
        self._magnitudes = np.empty(BLOCK, np.uint32)

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

    def _widen(self, codes: Halves, out: Floats) -> None:
        np.copyto(out, codes.view(np.float16))


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
        super().__init__(
            compiler, kernels.BFLOAT_ENCODE, kernels.BFLOAT_DECODE, kernels.BFLOAT_ADD
        )

    def _round(self, values: Floats, out: Halves) -> None:
        bits, words = values.view(np.uint32), self._words[: values.size]
        # Half a unit less one, and one more where the kept part is odd: ties go to even.
        np.right_shift(bits, 16, out=words)
        np.bitwise_and(words, 1, out=words)
        np.add(words, bits, out=words)
        np.add(words, 0x7FFF, out=words)
        np.right_shift(words, 16, out=words)
        np.copyto(out, words, casting="same_kind")
        # A carry would run through the payload of a NaN into its exponent and sign.
        if np.isnan(np.maximum.reduce(values)):
            out[np.isnan(values)] = _QUIET

    def _widen(self, codes: Halves, out: Floats) -> None:
        words = out.view(np.uint32)
        np.copyto(words, codes)
        np.left_shift(words, 16, out=words)
