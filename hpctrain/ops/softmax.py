"""Softmax, its logarithm, and the cross entropy of both fused.

Rows of logits are taken in blocks that stay in cache. Dimension key: R rows, C classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.errors import ShapeError
from hpctrain.ops.blocks import BLOCK, rows_per_block, spans
from hpctrain.ops.rules import floating, need, tensors

__all__ = ["softmax_cross_entropy"]


def _rows(xp: Any, *arrays: Any) -> Any:
    """Cut arrays of shape (R, ...) with equally many rows into blocks of rows."""
    rows, width = arrays[0].shape
    step = rows_per_block(width, 2 * BLOCK) if xp is np else max(rows, 1)
    return ([a[span] for a in arrays] for span in spans(rows, step))


def _block(xp: Any, x: Any, scratch: Any) -> Any:
    """Return room for the elements of the block ``x``: scratch, or on a GPU a new array."""
    return scratch[: x.size].reshape(x.shape) if xp is np else xp.empty(x.shape, scratch.dtype)


def _row_scratch(specs: Sequence[Spec], **_: Any) -> list[Spec]:
    x = specs[0]
    width = x.shape[-1] if x.ndim else 1
    rows = min(rows_per_block(width, 2 * BLOCK), x.size // max(width, 1))
    return [x.with_shape((rows * width,))]


def _xent_infer(specs: Sequence[Spec]) -> list[Spec]:
    logits, labels = specs
    floating("softmax_cross_entropy", logits)
    fits = logits.ndim and labels.shape == logits.shape[:-1] and labels.dtype.kind in "iu"
    need(bool(fits), "softmax_cross_entropy", specs, "whole-number labels, one for each row")
    return [logits.with_shape(labels.shape)] * 2


def check_ids(xp: Any, where: str, ids: Any, limit: int) -> None:
    """Raise if an index is out of range; not on a GPU, where looking would block."""
    if xp is np and ids.size and (ids.min() < 0 or ids.max() >= limit):
        bad = ids[(ids < 0) | (ids >= limit)].flat[0]
        raise ShapeError(f"{where}: got index {bad}, needed 0 to {limit - 1}")


def _xent(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    logits, labels = ins
    check_ids(xp, "softmax_cross_entropy", labels, logits.shape[-1])
    flat = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    results = outs[0].reshape(-1), outs[1].reshape(-1)
    for x, label, loss, total in _rows(xp, *flat, *results):
        e = _block(xp, x, scratch[0])
        xp.max(x, axis=1, out=loss)
        # Without the maximum exp would overflow.
        xp.subtract(x, loss[:, None], out=e)
        xp.exp(e, out=e)
        xp.add.reduce(e, axis=1, out=total)
        xp.log(total, out=total)
        total += loss
        xp.subtract(total, x[xp.arange(len(label)), label], out=loss)


def _xent_vjp(inputs: Any, outputs: Any, given: Any) -> list[Any]:
    logits, labels = inputs
    dloss, dtotal = given

    def dlogits() -> Any:
        parts = []
        if dloss is not None:
            parts.append(apply("softmax_cross_entropy_grad", logits, labels, outputs[1], dloss))
        if dtotal is not None:
            column = (*labels.shape, 1)
            p = apply("exp", logits - outputs[1].reshape(column))
            parts.append(p * dtotal.reshape(column))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    return [dlogits, None]


def _xent_grad_infer(specs: Sequence[Spec]) -> list[Spec]:
    logits, labels, total, dloss = specs
    fits = labels.shape == total.shape == dloss.shape == logits.shape[:-1]
    need(fits, "softmax_cross_entropy_grad", specs, "one label, sum and cotangent a row")
    return [logits]


def _xent_grad(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    """Write ``(softmax(logits) - one_hot(labels)) * dloss``."""
    classes = ins[0].shape[-1]
    vectors = (v.reshape(-1) for v in ins[1:])
    for x, out, label, total, g in _rows(
        xp, ins[0].reshape(-1, classes), outs[0].reshape(-1, classes), *vectors
    ):
        xp.subtract(x, total[:, None], out=out)
        xp.exp(out, out=out)
        xp.multiply(out, g[:, None], out=out)
        out[xp.arange(len(label)), label] -= g


def _xent_grad_vjp(inputs: Any, outputs: Any, given: Any) -> list[Any]:
    logits, labels, total, dloss = inputs
    u, column = given[0], (*labels.shape, 1)
    last = (logits.ndim - 1,)

    def inner() -> Any:
        p = apply("exp", logits - total.reshape(column))
        return p * u * dloss.reshape(column)

    def by_dloss() -> Any:
        p = apply("exp", logits - total.reshape(column))
        return apply("sum", p * u, axis=last, keepdims=False) - apply("pick", u, labels)

    return [
        inner,
        None,
        lambda: -apply("sum", inner(), axis=last, keepdims=False),
        by_dloss,
    ]


register(
    Primitive(
        "softmax_cross_entropy", "reduce", _xent_infer, _xent, _xent_vjp, scratch=_row_scratch
    )
)
register(
    Primitive(
        "softmax_cross_entropy_grad", "elementwise", _xent_grad_infer, _xent_grad,
        _xent_grad_vjp, inplace=((0, 0),),
    )
)  # fmt: skip


def softmax_cross_entropy(logits: Any, labels: Any) -> Any:
    """Return the cross entropy of softmax(logits) and the labels, one number for each row.

    Parameters
    ----------
    logits : array_like, shape (..., C), floating
    labels : array_like, shape (...), whole numbers from 0 to C - 1

    Returns
    -------
    Tensor, shape (...)

    Raises
    ------
    ShapeError
        If shapes or dtypes do not fit, or (on CPUs) a label is out of range.

    Notes
    -----
    Kept for the gradient: the logits and one number for each row, not the probabilities.
    """
    return apply("softmax_cross_entropy", *tensors(logits, labels))[0]
