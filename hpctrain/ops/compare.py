"""Comparisons, choices by a condition, and clipping."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, element, register
from hpctrain.ops.blocks import as_bits, block_spec, chunks, mask_bits
from hpctrain.ops.rules import broadcast_shapes, differentiable, fit, need, tensors

__all__ = [
    "clip", "equal", "greater", "greater_equal", "isfinite", "less", "less_equal",
    "logical_and", "logical_not", "logical_or", "not_equal", "where",
]  # fmt: skip

BOOL = np.dtype(np.bool_)


def _truth(name: str) -> Callable[..., Sequence[Spec]]:
    def infer(specs: Sequence[Spec]) -> list[Spec]:
        return [Spec(broadcast_shapes(name, specs), BOOL)]

    return infer


def _ufunc(name: str) -> Callable[..., None]:
    def kernel(xp: Any, ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> None:
        getattr(xp, name)(*ins, out=outs[0])

    return kernel


for _name, _formula in (
    ("equal", element.Element.equals),
    ("not_equal", element.Element.differs),
    ("less", operator.lt),
    ("less_equal", operator.le),
    ("greater", operator.gt),
    ("greater_equal", operator.ge),
    ("logical_and", element.logical_and),
    ("logical_or", element.logical_or),
    ("logical_not", element.logical_not),
    ("isfinite", element.isfinite),
):
    register(Primitive(_name, "elementwise", _truth(_name), _ufunc(_name), element=_formula))


def equal(a: Any, b: Any) -> Any:
    """Return where ``a == b``, as bool; shapes broadcast."""
    return apply("equal", *tensors(a, b))


def not_equal(a: Any, b: Any) -> Any:
    """Return where ``a != b``, as bool; shapes broadcast."""
    return apply("not_equal", *tensors(a, b))


def less(a: Any, b: Any) -> Any:
    """Return where ``a < b``, as bool; shapes broadcast."""
    return apply("less", *tensors(a, b))


def less_equal(a: Any, b: Any) -> Any:
    """Return where ``a <= b``, as bool; shapes broadcast."""
    return apply("less_equal", *tensors(a, b))


def greater(a: Any, b: Any) -> Any:
    """Return where ``a > b``, as bool; shapes broadcast."""
    return apply("greater", *tensors(a, b))


def greater_equal(a: Any, b: Any) -> Any:
    """Return where ``a >= b``, as bool; shapes broadcast."""
    return apply("greater_equal", *tensors(a, b))


def logical_and(a: Any, b: Any) -> Any:
    """Return where both are true (not 0), as bool; shapes broadcast."""
    return apply("logical_and", *tensors(a, b))


def logical_or(a: Any, b: Any) -> Any:
    """Return where one is true (not 0), as bool; shapes broadcast."""
    return apply("logical_or", *tensors(a, b))


def logical_not(x: Any) -> Any:
    """Return where ``x`` is 0 or false, as bool."""
    return apply("logical_not", *tensors(x))


def isfinite(x: Any) -> Any:
    """Return where ``x`` is neither infinite nor not a number, as bool."""
    return apply("isfinite", *tensors(x))


# Where


def _where_infer(specs: Sequence[Spec]) -> list[Spec]:
    condition, a, b = specs
    need(condition.dtype == BOOL, "where", specs, "a condition of dtype bool; use cast")
    return [Spec(broadcast_shapes("where", specs), np.result_type(a.dtype, b.dtype))]


def _where_scratch(specs: Sequence[Spec]) -> list[Spec]:
    (out,) = _where_infer(specs)
    if not specs[1].dtype == specs[2].dtype == out.dtype or out.dtype.itemsize > 8:
        return []
    return block_spec(Spec(out.shape, np.dtype(f"i{out.dtype.itemsize}")))


def _where(xp: Any, ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> None:
    condition, a, b = ins
    if xp is not np or not scratch:
        outs[0][...] = xp.where(condition, a, b)
        return
    seen = [np.broadcast_to(x, outs[0].shape) for x in ins]
    for (mask, one, other, out), (t,) in chunks(np, [*seen, outs[0]], scratch):
        # other ^ ((one ^ other) & mask) has the bits of one or of the other.
        mask_bits(np, mask, t)
        np.bitwise_xor(as_bits(one), as_bits(other), out=as_bits(out))
        np.bitwise_and(as_bits(out), t, out=as_bits(out))
        np.bitwise_xor(as_bits(out), as_bits(other), out=as_bits(out))


def _where_vjp(inputs: Any, outputs: Any, given: Any) -> list[Any]:
    condition, a, b = inputs
    g = given[0]
    return [
        None,
        (lambda: fit(where(condition, g, 0), a)) if differentiable(a) else None,
        (lambda: fit(where(condition, 0, g), b)) if differentiable(b) else None,
    ]


register(
    Primitive(
        "where", "elementwise", _where_infer, _where, _where_vjp,
        scratch=_where_scratch, element=element.where,
    )
)  # fmt: skip


def where(condition: Any, a: Any, b: Any) -> Any:
    """Return ``a`` where ``condition`` holds and ``b`` elsewhere.

    Parameters
    ----------
    condition : array_like of bool
    a, b : array_like
        All three broadcast; the result has NumPy's result dtype of ``a`` and ``b``.
    """
    (condition,), (a, b) = tensors(condition), tensors(a, b)
    return apply("where", condition, a, b)


# Clip


def _clip(xp: Any, ins: Any, outs: Any, scratch: Any, low: float, high: float) -> None:
    xp.clip(ins[0], low, high, out=outs[0])


def _clip_infer(specs: Sequence[Spec], low: float, high: float) -> list[Spec]:
    need(low <= high, "clip", specs, f"low <= high, not {low} and {high}")
    return [specs[0]]


def _clip_vjp(inputs: Any, outputs: Any, given: Any, low: float, high: float) -> list[Any]:
    x = inputs[0]
    inside = logical_and(greater_equal(x, low), less_equal(x, high))
    return [given[0] * apply("cast", inside, dtype=given[0].dtype.name)]


register(
    Primitive(
        "clip", "elementwise", _clip_infer, _clip, _clip_vjp, inplace=((0, 0),),
        element=lambda x, low, high: element.minimum(element.maximum(x, low), high),
    )
)  # fmt: skip


def clip(x: Any, low: float, high: float) -> Any:
    """Return ``x`` held between two numbers; the gradient is 0 outside of them.

    ``float("inf")`` leaves a side open.
    """
    return apply("clip", *tensors(x), low=low, high=high)
