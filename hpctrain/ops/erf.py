"""The error function, which NumPy lacks, as a rational function evaluated in cache blocks."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, element, register
from hpctrain.ops.blocks import block_spec, chunks
from hpctrain.ops.rules import floating, tensors

__all__ = ["erf", "erf_block"]

# erf(x) = x P(x²) / Q(x²) for |x| <= limit, beyond which it rounds to ±1. The coefficients,
# of rising powers, come from a weighted least-squares fit in 60 digits (Sanathanan-Koerner
# iteration) to erf(x)/x at Chebyshev points. Largest relative errors when evaluated:
# 3e-7 in float32, 1.2e-15 in float64. All are positive, so nothing cancels.
SHORT = (
    3.92,
    (1.1283791470766609, 0.19036796735207243, 0.05274367463669508, 0.0037639738885760104,
     0.0002848473111631008, 2.05040576185241e-06),
    (1.0, 0.502041969895414, 0.11409323260407314, 0.014965931733816034,
     0.0011621395739254312, 3.809315703035273e-05),
)  # fmt: skip
LONG = (
    5.93,
    (1.1283791670955121, 0.25675242586105734, 0.0726861913372866, 0.008903149780565854,
     0.001041509661724342, 8.008157315972577e-05, 5.1858730505088525e-06, 2.5307945023029e-07,
     9.297429890155227e-09, 2.530229024734428e-10, 3.351255668492386e-12,
     9.274999030172998e-15),
    (1.0, 0.5608742463066789, 0.1513745419744277, 0.02607049089131558, 0.0032002424374005215,
     0.0002957603139138282, 2.114343596235028e-05, 1.1783206550947149e-06,
     5.0584452528927034e-08, 1.6002327929556123e-09, 3.3567578311717215e-11,
     2.277603698021579e-13, 1.7014932389661681e-16),
)  # fmt: skip


def erf_block(xp: Any, x: Any, out: Any, z: Any, q: Any) -> None:
    """Write the error function of the block ``x``, which is overwritten, as are z and q."""
    limit, top, bottom = LONG if x.dtype == np.float64 else SHORT
    xp.clip(x, -limit, limit, out=x)
    xp.multiply(x, x, out=z)
    _polynomial(xp, bottom, z, q)
    _polynomial(xp, top, z, out)
    xp.divide(out, q, out=out)
    xp.multiply(out, x, out=out)


def _polynomial(xp: Any, coefficients: Sequence[float], z: Any, out: Any) -> None:
    """Evaluate by Horner's rule."""
    *rest, first = coefficients
    xp.multiply(z, first, out=out)
    for number in rest[:0:-1]:
        xp.add(out, number, out=out)
        xp.multiply(out, z, out=out)
    xp.add(out, rest[0], out=out)


def _infer(specs: Sequence[Spec]) -> list[Spec]:
    return [floating("erf", specs[0])]


def _kernel(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    for (x, y), (copy, z, q) in chunks(xp, [*ins, *outs], scratch):
        xp.copyto(copy, x)
        erf_block(xp, copy, y, z, q)


def _vjp(inputs: Any, outputs: Any, given: Any) -> list[Any]:
    x = inputs[0]
    return [given[0] * apply("exp", -(x * x)) * (2 / math.sqrt(math.pi))]


register(
    Primitive(
        "erf", "elementwise", _infer, _kernel, _vjp,
        scratch=lambda specs: block_spec(specs[0], 3), inplace=((0, 0),), element=element.erf,
    )
)  # fmt: skip


def erf(x: Any) -> Any:
    """Return the error function ``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` to x."""
    return apply("erf", *tensors(x))
