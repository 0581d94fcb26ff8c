"""exp, log, tanh and erf written out in arithmetic and bit operations that vectorise.

A compiler that meets a call of the C library's ``expf`` runs it for one element after the
other. So `expand` rewrites a formula until nothing is left but what a vector unit has: the
argument is reduced to a short interval, there a polynomial is evaluated, and powers of two
are put together from their bits. Both branches of a case are computed and one is chosen.

The polynomials are least-squares fits in 60 digits at Chebyshev points, reweighted towards
the smallest largest error (Lawson). Errors are at most 4 ULP over the whole range, infinities,
NaN and subnormal numbers included (tested).

``n``: whole number; ``r``: reduced argument; ``z``: its square.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpctrain.autograd import element
from hpctrain.autograd.element import Element, constant, where

__all__ = ["expand"]


@dataclass(frozen=True, slots=True)
class _Format:
    """A floating format: its layout, limits, and the coefficients that suit its precision."""

    integer: str  # dtype of the same size
    fraction_bits: int
    bias: int
    smallest: float  # normal number
    lift: int  # power of two that makes every subnormal number normal
    magic: float  # 1.5 * 2**fraction_bits: what is added to it is rounded to whole numbers
    ln2: tuple[float, float]  # the first with so few bits that n * ln2[0] is exact
    low: float  # exp is 0 below
    high: float  # and infinite above
    exp: Sequence[float]  # (exp(r) - 1 - r) / r², |r| <= ln2/2
    log: Sequence[float]  # (2 atanh(s) / s - 2) / s², |s| <= 0.172
    tanh: Sequence[float]  # (tanh(x) / x - 1) / x², |x| <= 0.56
    erf: Sequence[float]  # erf(x) / x - 1, |x| <= erf_edge
    erf_edge: float
    erf_middle: float  # from erf_edge to erf_end: log(erfc(erf_middle + t))
    erf_end: float  # erf rounds to 1 beyond
    erfc: Sequence[float]


_SHORT = _Format(
    integer="int32", fraction_bits=23, bias=127, smallest=2.0**-126, lift=25,
    magic=1.5 * 2**23, ln2=(0.693145751953125, 1.4286068203094173e-06), low=-104.0, high=89.0,
    exp=(0.5000000094606029, 0.16666518521138665, 0.04166620853291021, 0.008368922807906154,
         0.0013950291596229903),
    log=(0.666667798764306, 0.3997706927511001, 0.2988541907759883),
    tanh=(-0.33333315223206167, 0.13332497553169786, -0.05384216002332501,
          0.021026791799966582, -0.0062068908298657495),
    erf=(0.12837916649405387, -0.3761263227982347, 0.11283672469585351, -0.026858100686501872,
         0.005197789452430377, -0.0008105888998320123, 8.215142141853415e-05),
    erf_edge=0.94, erf_middle=2.0, erf_end=4.0,
    erfc=(-5.36494096110344, -4.418159590484956, -0.9237569062235074, -0.01649355559494767,
          0.003548739339417388, -0.0006966158328442318, 0.0001938628719799213),
)  # fmt: skip
_LONG = _Format(
    integer="int64", fraction_bits=52, bias=1023, smallest=2.0**-1022, lift=54,
    magic=1.5 * 2**52, ln2=(0.6931471805598903, 5.497923018708371e-14), low=-746.0, high=710.0,
    exp=(0.5000000000000013, 0.1666666666666669, 0.04166666666651398, 0.008333333333311602,
         0.0013888888947344675, 0.00019841269908459473, 2.4801489633683877e-05,
         2.7557223883805703e-06, 2.76313826292274e-07, 2.511555474076488e-08),
    log=(0.666666666666674, 0.3999999999937724, 0.28571428751438066, 0.22222197575452135,
         0.18183619533128947, 0.15312557354255096, 0.14811654331689186),
    tanh=(-0.33333333333333287, 0.13333333333324227, -0.0539682539623431,
          0.02186948834453201, -0.008863231912853304, 0.0035920849664689072,
          -0.001455496711509037, 0.0005882522018332523, -0.00023288650369201019,
          8.259921151881197e-05, -1.9047571127577156e-05),
    erf=(0.1283791670955126, -0.37612638903183754, 0.11283791670955097, -0.026866170645125875,
         0.0052239776253887385, -0.0008548327020248987, 0.0001205533285651413,
         -1.4925646994055384e-05, 1.6462050427460218e-06, -1.636497016906763e-07,
         1.4798536911511368e-08, -1.22289129285146e-09, 9.112914870089619e-11,
         -5.653217892276312e-12, 2.171855155689532e-13),
    erf_edge=1.25, erf_middle=3.0, erf_end=6.0,
    erfc=(-10.720363041981201, -6.303753689003178, -0.9573942187936654,
          -0.007411891767111151, 0.0013533104276923875, -0.00024569235179788346,
          4.308144532047558e-05, -7.115359326499665e-06, 1.0701962117266118e-06,
          -1.3546884244209044e-07, 1.1298919159356323e-08, -6.981563856952395e-12,
          -9.651128819760195e-10, 2.1881355459104284e-10, 6.494323853959202e-11,
          5.243524983953044e-11, 4.266392691061358e-12),
)  # fmt: skip


def _format(x: Element) -> _Format:
    return _LONG if x.dtype == "float64" else _SHORT


# What formulas of rows do not need, but their expansion does


def _fma(a: Element, b: Any, c: Any) -> Element:
    """Return a * b + c, rounded once where the machine can."""
    b, c = (v if isinstance(v, Element) else constant(v, a) for v in (b, c))
    return Element("fma", (a, b, c), a.dtype)


def _bits(x: Element) -> Element:
    return Element("bits", (x,), _format(x).integer)


def _number(bits: Element) -> Element:
    return Element("bits", (bits,), "float32" if bits.dtype == "int32" else "float64")


def _shift(op: str, bits: Element, count: int) -> Element:
    return Element(op, (bits, constant(count, bits)), bits.dtype)


def _polynomial(coefficients: Sequence[float], x: Element) -> Element:
    """Evaluate by Horner's rule."""
    *rest, first = coefficients
    total = constant(first, x)
    for number in reversed(rest):
        total = _fma(total, x, number)
    return total


def _whole_number(of: _Format) -> int:
    kind = np.float64 if of.integer == "int64" else np.float32
    return int(kind(of.magic).view(of.integer))


# The functions


def _reduce(x: Element) -> tuple[Element, Element, Element]:
    """Return exp(r) - 1 and two powers of two whose product is 2ⁿ, with x = n ln 2 + r."""
    of = _format(x)
    x = element.minimum(element.maximum(x, of.low), of.high)
    shifted = _fma(x, 1 / math.log(2), of.magic)
    n = shifted - of.magic
    r = _fma(n, -of.ln2[1], _fma(n, -of.ln2[0], x))
    power = _bits(shifted) - _whole_number(of)
    half = _shift("shift_right", power, 1)  # 2ⁿ itself may not be a normal number
    first, second = (
        _number(_shift("shift_left", part + of.bias, of.fraction_bits))
        for part in (half, power - half)
    )
    return _fma(r * r, _polynomial(of.exp, r), r), first, second


def _exp(x: Element) -> Element:
    rest, first, second = _reduce(x)
    return (rest + 1.0) * first * second


def _expm1(x: Element) -> Element:
    rest, first, second = _reduce(x)
    scale = first * second
    # From 60 on the 1 does not matter, and 2ⁿ may be infinite.
    return where(x > 60.0, (rest + 1.0) * first * second, _fma(rest, scale, scale - 1.0))


def _log(x: Element) -> Element:
    """Return n ln 2 + 2 atanh(s), with s = f / (2 + f) and √½ <= 1 + f < √2."""
    of = _format(x)
    kind = np.float64 if of.integer == "int64" else np.float32
    small = x < of.smallest
    bits = _bits(where(small, x * 2.0**of.lift, x))
    power = _shift(
        "shift_right", bits - int(kind(math.sqrt(0.5)).view(of.integer)), of.fraction_bits
    )
    f = _number(bits - _shift("shift_left", power, of.fraction_bits)) - 1.0
    n = _number(power + _whole_number(of)) - of.magic
    n = where(small, n - float(of.lift), n)
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    inner = _fma(s, half + z * _polynomial(of.log, z), n * of.ln2[1])
    finite = _fma(n, of.ln2[0], f - (half - inner))
    at_most_0 = where(x.equals(0.0), -math.inf, constant(math.nan, x))
    return where(x > 0.0, where(x < math.inf, finite, x), at_most_0)


def _log1p(x: Element) -> Element:
    """Return log(u) with u = 1 + x, and what rounding u has lost, divided by u."""
    u = x + 1.0
    lost = where(x > 1.0, 1.0 - (u - x), x - (u - 1.0))
    return _log(u) + where(element.logical_and(u > 0.0, u < math.inf), lost / u, 0.0)


def _tanh(x: Element) -> Element:
    z = x * x
    near = _fma(x * z, _polynomial(_format(x).tanh, z), x)
    a = element.absolute(x)
    far = 1.0 - 2.0 / (_exp(a + a) + 1.0)
    return where(a < 0.55, near, where(x < 0.0, -far, far))


def _erf(x: Element) -> Element:
    of = _format(x)
    z = x * x
    near = _fma(x, _polynomial(of.erf, z), x)
    a = element.minimum(element.absolute(x), of.erf_end)
    far = 1.0 - _exp(_polynomial(of.erfc, a - of.erf_middle))
    return where(a < of.erf_edge, near, where(x < 0.0, -far, far))


_EXPANSIONS: dict[str, Callable[[Element], Element]] = {
    "exp": _exp, "expm1": _expm1, "log": _log, "log1p": _log1p, "tanh": _tanh, "erf": _erf,
}  # fmt: skip


def expand(root: Element) -> Element:
    """Return ``root`` without transcendental functions.

    Parameters
    ----------
    root : Element
        Those of its functions that are transcendental have floating arguments.

    Returns
    -------
    Element
        With the further operations ``fma``, ``bits`` (the same bits as another dtype),
        ``shift_left`` and ``shift_right`` (which keeps the sign).
    """
    done: dict[int, Element] = {}
    for x in element.in_order([root]):
        args = tuple(done[id(a)] for a in x.args)
        done[id(x)] = (
            _EXPANSIONS[x.op](args[0]) if x.op in _EXPANSIONS else replace(x, args=args)
        )
    return done[id(root)]
