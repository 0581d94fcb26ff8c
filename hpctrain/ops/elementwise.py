"""Arithmetic of two tensors, with NumPy's broadcasting and result dtypes; copies, constants."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, element, register
from hpctrain.ops.blocks import row_spec, with_row
from hpctrain.ops.rules import (
    broadcast_shapes,
    differentiable,
    fit,
    need,
    same_spec,
    tensors,
)

__all__ = [
    "add", "cast", "divide", "identity", "maximum", "minimum", "multiply", "ones_like", "power",
    "subtract", "zeros_like",
]  # fmt: skip


# Two arguments


def _join(name: str) -> Callable[..., Sequence[Spec]]:
    def infer(specs: Sequence[Spec]) -> Sequence[Spec]:
        shape = broadcast_shapes(name, specs)
        dtype = np.result_type(*(s.dtype for s in specs))
        if name == "divide" and dtype.kind != "f":
            dtype = np.dtype(np.float32)
        need(name != "subtract" or dtype.kind != "b", name, specs, "numbers; use not_equal")
        return [Spec(shape, dtype)]

    return infer


def _row_place(a: Any, b: Any) -> int | None:
    """Say which of two arrays (or specs) is one vector along the last axis of the other."""
    for place, (row, x) in enumerate(((a, b), (b, a))):
        if row.ndim and x.ndim and 1 < row.size == x.shape[-1] == row.shape[-1] < x.size:
            return place if row.dtype == x.dtype and row.ndim <= x.ndim else None
    return None


def _row_scratch(specs: Sequence[Spec]) -> list[Spec]:
    place = _row_place(*specs)
    return [] if place is None else [row_spec(specs[place], specs[place].size)]


def _ufunc(name: str) -> Callable[..., None]:
    def kernel(xp: Any, ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> None:
        function = getattr(xp, name)
        place = _row_place(*ins) if xp is np and scratch else None
        if place is None:
            function(*ins, out=outs[0])
            return
        row, x = ins[place].reshape(-1), ins[1 - place]
        if place == 0:
            with_row(lambda u, v, out: function(v, u, out=out), x, row, outs[0], scratch[0])
        else:
            with_row(function, x, row, outs[0], scratch[0])

    return kernel


def _binary(name: str, rule: Callable[..., Sequence[Any]], formula: Any = None) -> Primitive:
    """Register a ufunc of two arguments; ``rule`` gives the two gradients as functions."""

    def vjp(inputs: Sequence[Any], outputs: Sequence[Any], given: Any) -> list[Any]:
        makers = rule(*inputs, outputs[0], given[0])
        return [
            (lambda make=make, like=like: fit(make(), like)) if differentiable(like) else None
            for make, like in zip(makers, inputs, strict=True)
        ]

    return register(
        Primitive(
            name, "elementwise", _join(name), _ufunc(name), vjp,
            scratch=_row_scratch, inplace=((0, 0), (1, 0)), element=formula,
        )
    )  # fmt: skip


def _chosen(a: Any, b: Any, y: Any, g: Any, mine: Any) -> Any:
    """Return the cotangent where ``mine`` was chosen, half of it where both are equal."""
    share = cast(equal_to(mine, y), g.dtype) * (1 - 0.5 * cast(equal_to(a, b), g.dtype))
    return g * share


def equal_to(a: Any, b: Any) -> Any:
    """Return where two tensors are equal."""
    return apply("equal", a, b)


def _power_base(a: Any, b: Any, g: Any) -> Any:
    return g * b * apply("power", a, b - 1)


def _power_exponent(a: Any, y: Any, g: Any) -> Any:
    """d(a**b)/db = y log(a), and 0 where a is 0; not a number where a is negative."""
    zero = equal_to(a, 0 * a)
    return g * y * apply("log", apply("where", zero, ones_like(a), a))


_binary("add", lambda a, b, y, g: (lambda: g, lambda: g), operator.add)
_binary("subtract", lambda a, b, y, g: (lambda: g, lambda: -g), operator.sub)
_binary("multiply", lambda a, b, y, g: (lambda: g * b, lambda: g * a), operator.mul)
_binary("divide", lambda a, b, y, g: (lambda: g / b, lambda: -(g * y) / b), operator.truediv)
_binary(
    "power", lambda a, b, y, g: (lambda: _power_base(a, b, g), lambda: _power_exponent(a, y, g))
)
for _name in ("maximum", "minimum"):
    _binary(
        _name,
        lambda a, b, y, g: (lambda: _chosen(a, b, y, g, a), lambda: _chosen(a, b, y, g, b)),
        getattr(element, _name),
    )


def add(a: Any, b: Any) -> Any:
    """Return ``a + b``; array_like of shapes that broadcast, result dtype as in NumPy."""
    return apply("add", *tensors(a, b))


def subtract(a: Any, b: Any) -> Any:
    """Return ``a - b``; see `add`."""
    return apply("subtract", *tensors(a, b))


def multiply(a: Any, b: Any) -> Any:
    """Return ``a * b``; see `add`."""
    return apply("multiply", *tensors(a, b))


def divide(a: Any, b: Any) -> Any:
    """Return ``a / b``, float32 for whole numbers; see `add`."""
    return apply("divide", *tensors(a, b))


def power(a: Any, b: Any) -> Any:
    """Return ``a`` to the power ``b``; see `add`."""
    return apply("power", *tensors(a, b))


def maximum(a: Any, b: Any) -> Any:
    """Return the larger element; where both are equal each gets half the gradient."""
    return apply("maximum", *tensors(a, b))


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller element; where both are equal each gets half the gradient."""
    return apply("minimum", *tensors(a, b))


# Copies and constants


def _fill(value: int) -> Callable[..., None]:
    def kernel(xp: Any, ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> None:
        outs[0][...] = value

    return kernel


def _copy(xp: Any, ins: Sequence[Any], outs: Sequence[Any], scratch: Any, **_: Any) -> None:
    xp.copyto(outs[0], ins[0], casting="unsafe")


def _cast_vjp(inputs: Any, outputs: Any, given: Any, dtype: str) -> list[Any]:
    return [fit(given[0], inputs[0]) if differentiable(inputs[0]) else None]


for _name, _value in (("ones_like", 1), ("zeros_like", 0)):
    register(
        Primitive(
            _name, "elementwise", same_spec, _fill(_value), lambda i, o, g: [None],
            inplace=((0, 0),), element=lambda x, value=_value: element.constant(value, x),
        )
    )  # fmt: skip
register(
    Primitive(
        "identity", "elementwise", same_spec, _copy, lambda i, o, g: g,
        inplace=((0, 0),), element=lambda x: x,
    )
)  # fmt: skip
register(
    Primitive(
        "cast", "elementwise", lambda specs, dtype: [Spec(specs[0].shape, np.dtype(dtype))],
        _copy, _cast_vjp, element=element.cast,
    )
)  # fmt: skip


def ones_like(x: Any) -> Any:
    """Return ones of the shape and dtype of ``x``."""
    return apply("ones_like", *tensors(x))


def zeros_like(x: Any) -> Any:
    """Return zeros of the shape and dtype of ``x``."""
    return apply("zeros_like", *tensors(x))


def identity(x: Any) -> Any:
    """Return a copy that shares no memory with ``x``."""
    return apply("identity", *tensors(x))


def cast(x: Any, dtype: Any) -> Any:
    """Return the elements converted to ``dtype``; ``x`` itself if it has that dtype."""
    (x,) = tensors(x)
    name = np.dtype(dtype).name
    return x if x.dtype.name == name else apply("cast", x, dtype=name)
