r"""Fewer bytes on the wire: codecs between float32 gradients and what is sent.

A codec turns a slice of the gradient into bytes and back; it knows no messages.  Sums are made
of decoded values, in float32.  ``halves`` rounds each value to two bytes.  ``twobit`` and
``topk`` send less than the whole truth; the difference, the *residual*, is kept for each slice
and added to the next gradient (error feedback), and belongs into checkpoints.

The residual is in units of the gradient as it is encoded.  Who scales the loss by a factor that
changes has to scale the residuals with it.

What it costs, in milliseconds of one core for 5.82 million values in slices of 262,144 (Xeon of
2023 with two busy cores, best of 60; 2-bit at a threshold of twice the standard deviation,
top-k at ratio 0.01)::

                 compiled                 NumPy alone
            encode  decode   add     encode  decode   add
    fp16       4.1     3.7   4.3       16.0    18.4  20.9
    bf16       3.3     3.7   3.3        8.3     4.4   5.4
    2bit       5.2     3.1   3.3       13.8     3.9   5.1
    topk         -       -     -       14.7     3.3   1.3

(NumPy's own conversion to float16 takes 45 to 56.)  One slice, a 22nd of it::

    python -m timeit -s "import numpy as np; from hpctrain.comm.compress import codec" \
        -s "from hpctrain.graph.native import compile_text" \
        -s "c = codec('fp16', compiler=lambda text: compile_text(text).function)" \
        -s "v = np.ones(262144, 'f4'); b = np.empty(c.nbytes(v.size), 'u1')" "c.encode(v, b)"
"""

from hpctrain.comm.encoding import Codec
from hpctrain.comm.halves import BFloat16, Half
from hpctrain.comm.kernels import Compiler
from hpctrain.comm.topk import TopK
from hpctrain.comm.twobit import TwoBit
from hpctrain.errors import ConfigError

__all__ = ["CODECS", "Codec", "codec"]

CODECS = ("none", "fp16", "bf16", "2bit", "topk")
"""The names that `codec` knows."""


def codec(
    name: str,
    *,
    threshold: float = 0.5,
    ratio: float = 0.01,
    compiler: Compiler | None = None,
) -> Codec | None:
    """Return the codec called ``name``, or None for ``none``.

    Parameters
    ----------
    name : str
        One of `CODECS`.
    threshold : float
        Of ``2bit``, in units of the gradient; above 0.
    ratio : float
        Of ``topk``: the share of the values that is sent; above 0, at most 1.
    compiler : Compiler or None
        Compiles LLVM text (`hpctrain.comm.kernels`); None: NumPy does everything, with the
        same results.

    Raises
    ------
    ConfigError
        If there is no such codec, or its setting is out of range.
    """
    match name:
        case "none":
            return None
        case "fp16":
            return Half(compiler)
        case "bf16":
            return BFloat16(compiler)
        case "2bit":
            return TwoBit(threshold, compiler)
        case "topk":
            return TopK(ratio)
    raise ConfigError(f"exchange: got compression {name!r}, needed one of {', '.join(CODECS)}")
