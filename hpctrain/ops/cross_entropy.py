"""Cross entropy of softmax and labels, fused: no probabilities are kept.

Rows of logits are taken in blocks that stay in cache.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.ops.blocks import BLOCK, room, rows_per_block, spans
from hpctrain.ops.rules import check_ids, floating, need, tensors

__all__ = ["softmax_cross_entropy"]


# Elements of a block: with its exponentials it takes a quarter of a 2 MiB level-2 cache, and
# calls cost nothing beside it; half as many take 1.1 times as long.
_BLOCK = 4 * BLOCK


def _row_scratch(specs: Sequence[Spec], **_: Any) -> list[Spec]:
    width = specs[0].shape[-1]
    rows = min(_rows(width), specs[0].size // max(width, 1))
    return [specs[0].with_shape((rows * width,)), specs[0].with_shape((width,))]


def _rows(width: int) -> int:
    return rows_per_block(width, _BLOCK)


def _spans(xp: Any, x: Any) -> Iterator[slice]:
    """Cut the rows of ``x`` into blocks; for a GPU into one."""
    return spans(len(x), _rows(x.shape[1]) if xp is np else max(len(x), 1))


def _reach(dtype: Any) -> float:
    """Return r such that sums of exponentials from exp(-2 r) to exp(2 r) are accurate.

    Half of the exponents of the dtype are left for their terms, and for what multiplies
    them. Numbers of 16 bits have none to spare.
    """
    return math.log(float(np.finfo(dtype).max)) / 4 if dtype.itemsize > 2 else 0.0


def _xent_infer(specs: Sequence[Spec]) -> list[Spec]:
    logits, labels = specs
    floating("softmax_cross_entropy", logits)
    fits = logits.ndim and labels.shape == logits.shape[:-1] and labels.dtype.kind in "iu"
    need(bool(fits), "softmax_cross_entropy", specs, "whole-number labels, one for each row")
    return [logits.with_shape(labels.shape)] * 3


def _xent(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    """Write the loss, and for each row a number and the sum of ``exp(x - number)``.

    The number is 0 where that sum can be computed, so that logits are read once; else it is
    the largest logit.
    """
    x, label = _rows_and_labels(xp, *ins)
    loss, peak, total = (o.reshape(-1) for o in outs)
    _add_exponentials(xp, x, peak, total, scratch)
    _losses(xp, x, label, (loss, peak, total))


def _rows_and_labels(xp: Any, logits: Any, labels: Any) -> tuple[Any, Any]:
    check_ids(xp, "softmax_cross_entropy", labels, logits.shape[-1])
    return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)


def _losses(xp: Any, x: Any, label: Any, outs: Any) -> None:
    """Write the loss of each row."""
    loss, peak, total = outs
    chosen = x[xp.arange(len(label)), label] - peak
    # Of log(total) - chosen, with both large, little would be left.
    near = xp.clip(chosen, -_reach(x.dtype), _reach(x.dtype))
    xp.multiply(total, xp.exp(-near), out=loss)
    xp.log(loss, out=loss)
    xp.subtract(loss, chosen - near, out=loss)


def _add_exponentials(xp: Any, x: Any, peak: Any, total: Any, scratch: Any) -> None:
    """Write peak and total of each row."""
    peak[...] = 0
    if xp is not np:
        _add_shifted(xp, x, peak, total, scratch[0])
        return
    ones = scratch[1]
    ones[...] = 1
    with np.errstate(over="ignore"):
        for rows in _spans(np, x):
            e = room(np, x[rows], scratch[0])
            np.exp(x[rows], out=e)
            # A product for each row, not one for all: a row's bits are its own.
            np.vecdot(e, ones, out=total[rows])
    _mend(x, peak, total, scratch[0])


def _mend(x: Any, peak: Any, total: Any, scratch: Any) -> None:
    """Write peak and total again where the sum of exponentials is not accurate."""
    low, high = math.exp(-2 * _reach(x.dtype)), math.exp(2 * _reach(x.dtype))
    if total.size and low < total.min() and total.max() < high:
        return
    for row in np.flatnonzero(~((total > low) & (total < high))):
        one = slice(row, row + 1)
        _add_shifted(np, x[one], peak[one], total[one], scratch)


def _add_shifted(xp: Any, x: Any, peak: Any, total: Any, scratch: Any) -> None:
    """Write the largest of each row, and the sum of the exponentials of what is below it."""
    e = room(xp, x, scratch)
    xp.max(x, axis=1, out=peak)
    xp.subtract(x, peak[:, None], out=e)
    xp.exp(e, out=e)
    xp.add.reduce(e, axis=1, out=total)


def _xent_from(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    """Write the same from logits, labels and the sums of the exponentials of the logits."""
    x, label = _rows_and_labels(xp, *ins[:2])
    loss, peak, total = (o.reshape(-1) for o in outs)
    peak[...] = 0
    total[...] = ins[2].reshape(-1)
    if xp is np:
        _mend(x, peak, total, scratch[0])
    else:
        _add_shifted(xp, x, peak, total, scratch[0])
    _losses(xp, x, label, (loss, peak, total))


def _xent_from_infer(specs: Sequence[Spec]) -> list[Spec]:
    outs = _xent_infer(specs[:2])
    need(specs[2] == outs[2], "softmax_cross_entropy_from", specs, "one sum for each row")
    return outs


def _xent_parts(inputs: Any) -> Sequence[Any]:
    """Sum the exponentials in one fused loop, and look at the sums after it."""
    logits, labels = inputs
    axis = logits.ndim - 1
    total = apply("sum", apply("exp", logits), axis=(axis,), keepdims=False)
    return apply("softmax_cross_entropy_from", logits, labels, total)


def _xent_vjp(inputs: Any, outputs: Any, given: Any) -> list[Any]:
    """Give the gradient of the loss; peak and total are hints, and nobody's result."""
    return [
        lambda: apply("softmax_cross_entropy_grad", *inputs[:2], *outputs[1:], given[0]),
        *[None] * (len(inputs) - 1),
    ]


def _xent_grad_infer(specs: Sequence[Spec]) -> list[Spec]:
    fits = all(s.shape == specs[0].shape[:-1] for s in specs[1:])
    need(fits, "softmax_cross_entropy_grad", specs, "one label, peak, total, dloss a row")
    return [specs[0]]


def _xent_grad(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    """Write ``(exp(logits - peak) / total - one_hot(labels)) * dloss``."""
    classes = ins[0].shape[-1]
    x, out = ins[0].reshape(-1, classes), outs[0].reshape(-1, classes)
    label, peak, total, g = (v.reshape(-1) for v in ins[1:])
    factor = (g / total)[:, None]
    for rows in _spans(xp, x):
        shift, to = peak[rows, None], out[rows]
        if xp is np and not shift.any():
            np.exp(x[rows], out=to)
        else:
            xp.subtract(x[rows], shift, out=to)
            xp.exp(to, out=to)
        xp.multiply(to, factor[rows], out=to)
    out[xp.arange(len(label)), label] -= g


def _xent_grad_parts(inputs: Any) -> Sequence[Any]:
    """Write it element by element: what sums the gradient can be fused with it."""
    logits, labels, *numbers = inputs
    peak, total, dloss = (v.reshape(*labels.shape, 1) for v in numbers)
    classes = np.arange(logits.shape[-1], dtype=np.int32)
    here = apply("cast", labels, dtype="int32").reshape(*labels.shape, 1)
    given = apply("where", *tensors(apply("equal", *tensors(here, classes)), dloss, 0.0))
    return [apply("exp", logits - peak) * (dloss / total) - given]


def _xent_grad_vjp(inputs: Any, outputs: Any, given: Any) -> list[Any]:
    """Differentiate the softmax that logits, peak and total stand for, by the logits."""
    logits, labels, _, _, dloss = inputs
    u, axis = given[0], logits.ndim - 1

    def by_logits() -> Any:
        p = apply("softmax", logits, axis=axis)
        moved = u * dloss.reshape(*labels.shape, 1)
        return apply("softmax_grad", p, moved, axis=axis)

    def by_dloss() -> Any:
        p = apply("softmax", logits, axis=axis)
        mean = apply("sum", p * u, axis=(axis,), keepdims=False)
        return mean - apply("pick", u, labels)

    return [by_logits, None, None, None, by_dloss]


register(
    Primitive(
        "softmax_cross_entropy", "reduce", _xent_infer, _xent, _xent_vjp,
        scratch=_row_scratch, parts=_xent_parts,
    )
)  # fmt: skip
register(
    Primitive(
        "softmax_cross_entropy_from", "reduce", _xent_from_infer, _xent_from, _xent_vjp,
        scratch=lambda specs: [specs[0].with_shape((specs[0].shape[-1],))],
    )
)  # fmt: skip
register(
    Primitive(
        "softmax_cross_entropy_grad", "normalize", _xent_grad_infer, _xent_grad,
        _xent_grad_vjp, inplace=((0, 0),), parts=_xent_grad_parts,
    )
)  # fmt: skip


def softmax_cross_entropy(logits: Any, labels: Any) -> Any:
    """Return the cross entropy of softmax(logits) and the labels, one number for each row.

    Parameters
    ----------
    logits : array_like, shape (..., C), floating
    labels : array_like
        Shape (...), whole numbers from 0 to C - 1; or shape (..., C), floating: a
        probability for each class.

    Returns
    -------
    Tensor, shape (...)

    Raises
    ------
    ShapeError
        If shapes or dtypes do not fit, or (on CPUs) a label is out of range.

    Notes
    -----
    Kept for the gradient: the logits and two numbers for each row, not the probabilities.
    Logits are read once, and so are they for the gradient, if the sum of their exponentials
    is in the middle half of the exponents of their dtype (for float32, from 1e-19 to 1e19);
    rows for which it is not are read twice more. (1120, 10000), float32, one Sapphire Rapids
    core: 11 and 10 ms; with the largest logit of every row found first, 16 and 16.
    """
    (logits,), (labels,) = tensors(logits), tensors(labels)
    if labels.dtype.kind == "f":
        need(labels.shape == logits.shape, "softmax_cross_entropy", [logits.spec, labels.spec],
             "probabilities of the shape of the logits, or whole-number labels")  # fmt: skip
        axis = logits.ndim - 1
        products = labels * apply("log_softmax", logits, axis=axis)
        return -apply("sum", products, axis=(axis,), keepdims=False)
    return apply("softmax_cross_entropy", logits, labels)[0]
