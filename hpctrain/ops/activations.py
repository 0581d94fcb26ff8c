"""Activation functions, each with its gradient fused into one kernel.

A gradient is taken from the result where the result is enough (relu, leaky_relu, sigmoid,
tanh), so that the argument need not be kept; from the argument otherwise (gelu, silu).

Kernels run in cache blocks (`blocks.chunks`): x and y are one block, r, s, t scratch.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.ops.blocks import as_bits, block_spec, chunks
from hpctrain.ops.erf import erf_block
from hpctrain.ops.formulas import CUBIC, FORMULAS, SCALE, largest_exponent
from hpctrain.ops.rules import floating, need, tensors

__all__ = ["gelu", "leaky_relu", "relu", "sigmoid", "silu", "softplus", "tanh"]


def _fused(
    name: str, function: Any, vjp: Any, temporaries: int = 0, arity: int = 1,
    signs: tuple[int, ...] = (),
) -> None:  # fmt: skip
    """Register a row whose kernel is ``function(xp, *ins, out, *scratch, **attrs)`` on blocks.

    ``function`` may write ``out`` only when it has no more need of the inputs.
    """

    def infer(specs: Sequence[Spec], **_: Any) -> list[Spec]:
        need(len(set(specs)) == 1, name, specs, "equal shapes and dtypes")
        return [floating(name, specs[0])]

    def kernel(xp: Any, ins: Any, outs: Any, scratch: Any, **attrs: Any) -> None:
        for parts, spare in chunks(xp, [*ins, *outs], scratch):
            function(xp, *parts, *spare, **attrs)

    def scratch(specs: Sequence[Spec], **_: Any) -> list[Spec]:
        return block_spec(specs[0], temporaries)

    inplace = tuple((i, 0) for i in range(arity))
    register(
        Primitive(
            name, "elementwise", infer, kernel, vjp,
            scratch=scratch, inplace=inplace, element=FORMULAS[name], signs=signs,
        )
    )  # fmt: skip


def _from_result(name: str) -> Callable[..., Any]:
    """Make the rule of a row whose gradient row takes (y, dy)."""
    return lambda i, o, g, **attrs: [apply(f"{name}_grad", o[0], g[0], **attrs)]


def _from_argument(name: str) -> Callable[..., Any]:
    """Make the rule of a row whose gradient row takes (x, dy)."""
    return lambda i, o, g, **attrs: [apply(f"{name}_grad", i[0], g[0], **attrs)]


def _again(name: str, slope: Callable[..., Any] | None) -> Callable[..., Any]:
    """Make the rule of a gradient row: linear in dy, ``slope(i, **attrs)`` times dy in y."""

    def vjp(i: Any, o: Any, g: Any, **attrs: Any) -> list[Any]:
        return [
            None if slope is None else (lambda: g[0] * i[1] * slope(i[0], **attrs)),
            lambda: apply(f"{name}_grad", i[0], g[0], **attrs),
        ]

    return vjp


# Piecewise linear


def _relu(xp: Any, x: Any, y: Any) -> None:
    xp.maximum(x, 0, out=y)


def _relu_grad(xp: Any, y: Any, dy: Any, dx: Any, t: Any) -> None:
    # As an integer the result y is positive or 0; minus that, shifted right, is all ones or 0.
    mask = as_bits(t)
    xp.bitwise_and(as_bits(y), np.iinfo(mask.dtype).max, out=mask)  # -0 is 0
    xp.negative(mask, out=mask)
    xp.right_shift(mask, 8 * mask.itemsize - 1, out=mask)
    xp.bitwise_and(mask, as_bits(dy), out=as_bits(dx))


def _leaky_relu(xp: Any, x: Any, y: Any, t: Any, slope: float) -> None:
    xp.multiply(x, slope, out=t)
    (xp.maximum if slope <= 1 else xp.minimum)(x, t, out=y)


def _leaky_relu_grad(xp: Any, y: Any, dy: Any, dx: Any, t: Any, slope: float) -> None:
    xp.sign(y, out=t)
    xp.maximum(t, 0, out=t)
    xp.multiply(t, 1 - slope, out=t)
    xp.add(t, slope, out=t)
    xp.multiply(t, dy, out=dx)


_fused("relu", _relu, _from_result("relu"))
_fused("relu_grad", _relu_grad, _again("relu", None), 1, 2, signs=(0,))
_fused("leaky_relu", _leaky_relu, _from_result("leaky_relu"), 1)
_fused("leaky_relu_grad", _leaky_relu_grad, _again("leaky_relu", None), 1, 2, signs=(0,))


def relu(x: Any) -> Any:
    """Return ``max(x, 0)``; the gradient at 0 is 0."""
    return apply("relu", *tensors(x))


def leaky_relu(x: Any, slope: float = 0.01) -> Any:
    """Return ``x`` where positive, else ``slope * x``, with ``slope >= 0``."""
    (x,) = tensors(x)
    need(slope >= 0, "leaky_relu", [x.spec], f"a slope of 0 or more, not {slope}")
    return apply("leaky_relu", x, slope=float(slope))


# Sigmoid and tanh


def _sigmoid(xp: Any, x: Any, y: Any) -> None:
    xp.negative(x, out=y)
    # An infinite exponential would give the right 0, but raise a warning.
    xp.minimum(y, largest_exponent(y.dtype), out=y)
    xp.exp(y, out=y)
    xp.add(y, 1, out=y)
    xp.reciprocal(y, out=y)


def _sigmoid_grad(xp: Any, y: Any, dy: Any, dx: Any, t: Any) -> None:
    xp.subtract(1, y, out=t)
    xp.multiply(t, y, out=t)
    xp.multiply(t, dy, out=dx)


def _tanh(xp: Any, x: Any, y: Any) -> None:
    xp.tanh(x, out=y)


def _tanh_grad(xp: Any, y: Any, dy: Any, dx: Any, t: Any) -> None:
    xp.multiply(y, y, out=t)
    xp.subtract(1, t, out=t)
    xp.multiply(t, dy, out=dx)


_fused("sigmoid", _sigmoid, _from_result("sigmoid"))
_fused("sigmoid_grad", _sigmoid_grad, _again("sigmoid", lambda y: 1 - 2 * y), 1, 2)
_fused("tanh", _tanh, _from_result("tanh"))
_fused("tanh_grad", _tanh_grad, _again("tanh", lambda y: -2 * y), 1, 2)


def sigmoid(x: Any) -> Any:
    """Return ``1 / (1 + exp(-x))``, for any ``x`` without overflow."""
    return apply("sigmoid", *tensors(x))


def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent."""
    return apply("tanh", *tensors(x))


# Softplus and silu


def _softplus(xp: Any, x: Any, y: Any, t: Any) -> None:
    # log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), where nothing overflows.
    xp.abs(x, out=t)
    xp.negative(t, out=t)
    xp.exp(t, out=t)
    xp.log1p(t, out=t)
    xp.maximum(x, 0, out=y)
    xp.add(y, t, out=y)


def _silu(xp: Any, x: Any, y: Any, s: Any) -> None:
    _sigmoid(xp, x, s)
    # Below, the product is 0; but sigmoid, held away from 0, would make it large.
    xp.maximum(x, -largest_exponent(y.dtype), out=y)
    xp.multiply(y, s, out=y)


def _silu_grad(xp: Any, x: Any, dy: Any, dx: Any, *scratch: Any) -> None:
    # s (1 + x (1 - s))
    r, s, t = scratch
    _sigmoid(xp, x, s)
    xp.maximum(x, -largest_exponent(s.dtype), out=r)
    xp.subtract(1, s, out=t)
    xp.multiply(t, r, out=t)
    xp.add(t, 1, out=t)
    xp.multiply(t, s, out=t)
    xp.multiply(t, dy, out=dx)


def _silu_second(x: Any) -> Any:
    s = sigmoid(x)
    return s * (1 - s) * (2 + x * (1 - 2 * s))


_fused("softplus", _softplus, lambda i, o, g: [g[0] * sigmoid(i[0])], 1)
_fused("silu", _silu, _from_argument("silu"), 1)
_fused("silu_grad", _silu_grad, _again("silu", _silu_second), 3, 2)


def softplus(x: Any) -> Any:
    """Return ``log(1 + exp(x))``, for any ``x`` without overflow."""
    return apply("softplus", *tensors(x))


def silu(x: Any) -> Any:
    """Return ``x * sigmoid(x)``, also called swish."""
    return apply("silu", *tensors(x))


# Gelu: x Φ(x), with Φ(x) = (1 + erf(x / √2)) / 2, or approximately with a tanh


def _gelu_factor(xp: Any, x: Any, out: Any, spare: Sequence[Any], approximate: bool) -> None:
    """Write ``2 Φ(x) - 1`` to ``out``."""
    if approximate:
        xp.multiply(x, x, out=out)
        xp.multiply(out, SCALE * CUBIC, out=out)
        xp.add(out, SCALE, out=out)
        xp.multiply(out, x, out=out)
        xp.tanh(out, out=out)
    else:
        xp.multiply(x, math.sqrt(0.5), out=spare[0])
        erf_block(xp, spare[0], out, *spare[1:])


def _gelu(xp: Any, x: Any, y: Any, *scratch: Any, approximate: bool) -> None:
    s, *spare = scratch
    _gelu_factor(xp, x, s, spare, approximate)
    xp.add(s, 1, out=s)
    xp.multiply(s, 0.5, out=s)
    xp.multiply(s, x, out=y)


def _gelu_grad(xp: Any, x: Any, dy: Any, dx: Any, *scratch: Any, approximate: bool) -> None:
    s, *spare = scratch
    r, t = spare[:2]
    _gelu_factor(xp, x, s, spare, approximate)
    xp.multiply(x, x, out=r)
    if approximate:
        # (1 + s) / 2 * (1 + (1 - s) x k), k the derivative of the argument of tanh
        xp.multiply(r, 3 * SCALE * CUBIC, out=r)
        xp.add(r, SCALE, out=r)
        xp.multiply(r, x, out=r)
        xp.subtract(1, s, out=t)
        xp.multiply(r, t, out=r)
        xp.add(r, 1, out=r)
        xp.add(s, 1, out=s)
        xp.multiply(r, s, out=r)
    else:
        # (1 + s) / 2 + x φ(x)
        xp.multiply(r, -0.5, out=r)
        xp.exp(r, out=r)
        xp.multiply(r, x, out=r)
        xp.multiply(r, SCALE, out=r)
        xp.add(r, s, out=r)
        xp.add(r, 1, out=r)
    xp.multiply(r, 0.5, out=r)
    xp.multiply(r, dy, out=dx)


def _gelu_second(x: Any, approximate: bool) -> Any:
    if not approximate:
        density = apply("exp", x * x * -0.5) * (0.5 * SCALE)
        return density * (2 - x * x)
    t = tanh((x * x * CUBIC + 1) * x * SCALE)
    slope = (x * x * (3 * CUBIC) + 1) * SCALE
    return (1 - t * t) * (slope + x * x * (3 * SCALE * CUBIC) - x * t * slope * slope)


_fused("gelu", _gelu, _from_argument("gelu"), 4)
_fused("gelu_grad", _gelu_grad, _again("gelu", _gelu_second), 4, 2)


def gelu(x: Any, approximate: bool = True) -> Any:
    """Return ``x`` times the normal distribution function of ``x``.

    Parameters
    ----------
    x : array_like, floating
    approximate : bool
        By a tanh, within 5e-4; else by the error function.

    References
    ----------
    Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", arXiv:1606.08415 (2016).
    """
    return apply("gelu", *tensors(x), approximate=bool(approximate))
