"""Functions of one argument, element by element."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from hpctrain.autograd import Primitive, Spec, apply, element, register
from hpctrain.ops.rules import need, tensors

__all__ = [
    "abs", "exp", "expm1", "log", "log1p", "negative", "reciprocal", "rsqrt", "sign", "sqrt",
    "square",
]  # fmt: skip


def _plain(name: str) -> Callable[..., None]:
    def kernel(xp: Any, ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> None:
        getattr(xp, name)(ins[0], out=outs[0])

    return kernel


def _rsqrt(xp: Any, ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> None:
    xp.sqrt(ins[0], out=outs[0])
    xp.reciprocal(outs[0], out=outs[0])


def _unary(
    name: str, rule: Any, formula: Any, kernel: Any = None, numbers: str = "f"
) -> Primitive:
    """Register a function of one argument.

    ``rule(x, y, g)`` is the gradient; ``numbers`` the kinds of dtype that it takes.
    """

    def infer(specs: Sequence[Spec]) -> Sequence[Spec]:
        kinds = "a floating dtype; use cast" if numbers == "f" else "numbers; use cast"
        need(specs[0].dtype.kind in numbers, name, specs, kinds)
        return specs

    def vjp(inputs: Sequence[Any], outputs: Sequence[Any], given: Any) -> list[Any]:
        return [None if rule is None else rule(inputs[0], outputs[0], given[0])]

    return register(
        Primitive(
            name, "elementwise", infer, kernel or _plain(name), vjp,
            inplace=((0, 0),), element=formula,
        )
    )  # fmt: skip


_unary("negative", lambda x, y, g: -g, operator.neg, numbers="fi")
_unary("abs", lambda x, y, g: g * apply("sign", x), element.absolute, numbers="fiu")
_unary("sign", None, element.sign, numbers="fiu")
_unary("square", lambda x, y, g: g * (x + x), lambda x: x * x, numbers="fiu")
_unary("exp", lambda x, y, g: g * y, element.exp)
_unary("expm1", lambda x, y, g: g * (y + 1), element.expm1)
_unary("log", lambda x, y, g: g / x, element.log)
_unary("log1p", lambda x, y, g: g / (x + 1), element.log1p)
_unary("sqrt", lambda x, y, g: g * 0.5 / y, element.sqrt)
_unary("rsqrt", lambda x, y, g: g * -0.5 * y * y * y, lambda x: 1.0 / element.sqrt(x), _rsqrt)
_unary("reciprocal", lambda x, y, g: -(g * y * y), lambda x: 1.0 / x)


def negative(x: Any) -> Any:
    """Return ``-x``, for ``x`` of any numbers."""
    return apply("negative", *tensors(x))


def abs(x: Any) -> Any:
    """Return the absolute value; its gradient at 0 is 0."""
    return apply("abs", *tensors(x))


def sign(x: Any) -> Any:
    """Return -1, 0 or 1; it has no gradient."""
    return apply("sign", *tensors(x))


def square(x: Any) -> Any:
    """Return ``x * x``."""
    return apply("square", *tensors(x))


def exp(x: Any) -> Any:
    """Return the exponential of floating ``x``."""
    return apply("exp", *tensors(x))


def expm1(x: Any) -> Any:
    """Return ``exp(x) - 1``, exact for small ``x``."""
    return apply("expm1", *tensors(x))


def log(x: Any) -> Any:
    """Return the natural logarithm of floating ``x``."""
    return apply("log", *tensors(x))


def log1p(x: Any) -> Any:
    """Return ``log(1 + x)``, exact for small ``x``."""
    return apply("log1p", *tensors(x))


def sqrt(x: Any) -> Any:
    """Return the square root of floating ``x``."""
    return apply("sqrt", *tensors(x))


def rsqrt(x: Any) -> Any:
    """Return ``1 / sqrt(x)``."""
    return apply("rsqrt", *tensors(x))


def reciprocal(x: Any) -> Any:
    """Return ``1 / x`` of floating ``x``."""
    return apply("reciprocal", *tensors(x))
