"""Softmax, its logarithm, and logsumexp, along any axis, in blocks that stay in cache.

Dimension key: A what lies before the axis, C the axis, B what lies behind it (left out if 1).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.ops.blocks import BLOCK, room, row_blocks, rows_per_block
from hpctrain.ops.dnnl_row import TwoKernels
from hpctrain.ops.dnnl_softmax import no_nan, softmax_grad_program, softmax_program
from hpctrain.ops.rules import axis_of, floating, need, tensors

__all__ = ["log_softmax", "logsumexp", "softmax"]


def _folded(x: Any, axis: int) -> Any:
    """Return ``x`` in the shape (A, C, B), or (A, C) where the axis is the last one."""
    lead, behind = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    return x.reshape((lead, x.shape[axis]) + ((behind,) if behind != 1 else ()))


def _infer(name: str) -> Callable[..., Sequence[Spec]]:
    def infer(specs: Sequence[Spec], axis: int) -> list[Spec]:
        fits = len(set(specs)) == 1 and 0 <= axis < specs[0].ndim and specs[0].shape[axis] > 0
        need(fits, name, specs, f"an axis {axis} of at least one element, and equal specs")
        return [floating(name, specs[0])]

    return infer


def _scratch(specs: Sequence[Spec], axis: int) -> list[Spec]:
    """Return room for one block, and for one number for each of its rows."""
    x = specs[0]
    behind = math.prod(x.shape[axis + 1 :])
    rows = min(rows_per_block(x.shape[axis] * behind, 2 * BLOCK), math.prod(x.shape[:axis]))
    return [x.with_shape((rows * x.shape[axis] * behind,)), x.with_shape((rows * behind,))]


def _kernel(function: Callable[..., None]) -> Callable[..., None]:
    """Run ``function(xp, *ins, out, e, m)`` on blocks: e a whole block, m a number a row."""

    def kernel(xp: Any, ins: Any, outs: Any, scratch: Any, axis: int) -> None:
        for parts in row_blocks(xp, *(_folded(x, axis) for x in (*ins, *outs))):
            e = room(xp, parts[0], scratch[0])
            m = room(xp, parts[0][:, :1], scratch[1])
            function(xp, *parts, e, m)

    return kernel


def _softmax(xp: Any, x: Any, y: Any, e: Any, m: Any) -> None:
    xp.max(x, axis=1, out=m, keepdims=True)
    # Without the maximum exp would overflow.
    xp.subtract(x, m, out=y)
    xp.exp(y, out=y)
    xp.add.reduce(y, axis=1, out=m, keepdims=True)
    xp.reciprocal(m, out=m)
    xp.multiply(y, m, out=y)


def _softmax_grad(xp: Any, y: Any, dy: Any, dx: Any, e: Any, m: Any) -> None:
    xp.multiply(y, dy, out=e)
    xp.add.reduce(e, axis=1, out=m, keepdims=True)
    xp.subtract(dy, m, out=e)
    xp.multiply(e, y, out=dx)


def _log_softmax(xp: Any, x: Any, y: Any, e: Any, m: Any) -> None:
    xp.max(x, axis=1, out=m, keepdims=True)
    xp.subtract(x, m, out=y)
    xp.exp(y, out=e)
    xp.add.reduce(e, axis=1, out=m, keepdims=True)
    xp.log(m, out=m)
    xp.subtract(y, m, out=y)


def _log_softmax_grad(xp: Any, y: Any, dy: Any, dx: Any, e: Any, m: Any) -> None:
    xp.add.reduce(dy, axis=1, out=m, keepdims=True)
    xp.exp(y, out=e)
    xp.multiply(e, m, out=e)
    xp.subtract(dy, e, out=dx)


def _sum(x: Any, axis: int) -> Any:
    return apply("sum", x, axis=(axis,), keepdims=True)


def _softmax_grad_vjp(inputs: Any, outputs: Any, given: Any, axis: int) -> list[Any]:
    y, dy = inputs
    u = given[0]
    return [
        lambda: u * (dy - _sum(y * dy, axis)) - dy * _sum(u * y, axis),
        lambda: apply("softmax_grad", y, u, axis=axis),
    ]


def _log_softmax_grad_vjp(inputs: Any, outputs: Any, given: Any, axis: int) -> list[Any]:
    y, dy = inputs
    u = given[0]
    return [
        lambda: -(u * apply("exp", y) * _sum(dy, axis)),
        lambda: u - _sum(u * apply("exp", y), axis),
    ]


for _name, _function, _gradient, _second in (
    ("softmax", _softmax, _softmax_grad, _softmax_grad_vjp),
    ("log_softmax", _log_softmax, _log_softmax_grad, _log_softmax_grad_vjp),
):

    def _vjp(i: Any, o: Any, g: Any, axis: int, name: str = f"{_name}_grad") -> list[Any]:
        return [apply(name, o[0], g[0], axis=axis)]

    _log = _name == "log_softmax"
    _forward = TwoKernels(_infer(_name), softmax_program(_log), _kernel(_function), _scratch,
                          guard=no_nan)  # fmt: skip
    _back = TwoKernels(_infer(f"{_name}_grad"), softmax_grad_program(_log),
                       _kernel(_gradient), _scratch)  # fmt: skip
    register(
        Primitive(
            _name, "normalize", _infer(_name), _forward.kernel, _vjp,
            inplace=((0, 0),), **_forward.columns,
        )
    )  # fmt: skip
    register(
        Primitive(
            f"{_name}_grad", "normalize", _infer(f"{_name}_grad"), _back.kernel, _second,
            inplace=((1, 0),), **_back.columns,
        )
    )  # fmt: skip


def softmax(x: Any, axis: int = -1) -> Any:
    """Return ``exp(x) / sum(exp(x))`` along ``axis``, for any ``x`` without overflow."""
    (x,) = tensors(x)
    return apply("softmax", x, axis=axis_of("softmax", axis, x.ndim))


def log_softmax(x: Any, axis: int = -1) -> Any:
    """Return ``x - log(sum(exp(x)))`` along ``axis``, exact where softmax would be 0."""
    (x,) = tensors(x)
    return apply("log_softmax", x, axis=axis_of("log_softmax", axis, x.ndim))


# Logsumexp


def _logsumexp_infer(specs: Sequence[Spec], axis: int) -> list[Spec]:
    (x,) = _infer("logsumexp")(specs, axis)
    return [x.with_shape(x.shape[:axis] + x.shape[axis + 1 :])]


def _logsumexp(xp: Any, ins: Any, outs: Any, scratch: Any, axis: int) -> None:
    x = _folded(ins[0], axis)
    for part, y in row_blocks(xp, x, outs[0].reshape(x.shape[:1] + x.shape[2:])):
        e, m = room(xp, part, scratch[0]), room(xp, part[:, :1], scratch[1])
        xp.max(part, axis=1, out=m, keepdims=True)
        xp.subtract(part, m, out=e)
        xp.exp(e, out=e)
        xp.add.reduce(e, axis=1, out=y)
        xp.log(y, out=y)
        xp.add(y, m[:, 0], out=y)


def _logsumexp_vjp(inputs: Any, outputs: Any, given: Any, axis: int) -> list[Any]:
    x = inputs[0]
    column = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    p = apply("exp", x - outputs[0].reshape(column))
    return [p * given[0].reshape(column)]


register(
    Primitive(
        "logsumexp", "reduce", _logsumexp_infer, _logsumexp, _logsumexp_vjp, scratch=_scratch
    )
)


def logsumexp(x: Any, axis: int = -1, keepdims: bool = False) -> Any:
    """Return ``log(sum(exp(x)))`` along ``axis``, for any ``x`` without overflow."""
    (x,) = tensors(x)
    axis = axis_of("logsumexp", axis, x.ndim)
    y = apply("logsumexp", x, axis=axis)
    return y.reshape(*x.shape[:axis], 1, *x.shape[axis + 1 :]) if keepdims else y
