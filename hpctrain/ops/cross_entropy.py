"""Cross entropy of softmax and labels, fused: no probabilities are kept.

Rows of logits are taken in blocks that stay in cache.
"""

from collections.abc import Sequence
from typing import Any

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.ops.blocks import room, row_block_rows, row_blocks
from hpctrain.ops.rules import check_ids, floating, need, tensors

__all__ = ["softmax_cross_entropy"]


def _row_scratch(specs: Sequence[Spec], **_: Any) -> list[Spec]:
    return [specs[0].with_shape((row_block_rows(specs[0].shape) * specs[0].shape[-1],))]


def _xent_infer(specs: Sequence[Spec]) -> list[Spec]:
    logits, labels = specs
    floating("softmax_cross_entropy", logits)
    fits = logits.ndim and labels.shape == logits.shape[:-1] and labels.dtype.kind in "iu"
    need(bool(fits), "softmax_cross_entropy", specs, "whole-number labels, one for each row")
    return [logits.with_shape(labels.shape)] * 3


def _xent(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    """Write the loss, the largest logit, and the sum of ``exp(x - largest)`` of each row."""
    logits, labels = ins
    check_ids(xp, "softmax_cross_entropy", labels, logits.shape[-1])
    flat = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    for x, label, loss, peak, total in row_blocks(xp, *flat, *(o.reshape(-1) for o in outs)):
        e = room(xp, x, scratch[0])
        xp.max(x, axis=1, out=peak)
        # Without the maximum exp would overflow.
        xp.subtract(x, peak[:, None], out=e)
        chosen = e[xp.arange(len(label)), label]
        xp.exp(e, out=e)
        xp.add.reduce(e, axis=1, out=total)
        xp.log(total, out=loss)
        xp.subtract(loss, chosen, out=loss)


def _xent_vjp(inputs: Any, outputs: Any, given: Any) -> list[Any]:
    """Give the gradient of the loss; peak and total are hints, and nobody's result."""
    return [
        lambda: apply("softmax_cross_entropy_grad", *inputs, *outputs[1:], given[0]),
        None,
    ]


def _xent_grad_infer(specs: Sequence[Spec]) -> list[Spec]:
    fits = all(s.shape == specs[0].shape[:-1] for s in specs[1:])
    need(fits, "softmax_cross_entropy_grad", specs, "one label, peak, total, dloss a row")
    return [specs[0]]


def _xent_grad(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    """Write ``(exp(logits - peak) / total - one_hot(labels)) * dloss``."""
    classes = ins[0].shape[-1]
    vectors = (v.reshape(-1) for v in ins[1:])
    for x, out, label, peak, total, g in row_blocks(
        xp, ins[0].reshape(-1, classes), outs[0].reshape(-1, classes), *vectors
    ):
        xp.subtract(x, peak[:, None], out=out)
        xp.exp(out, out=out)
        xp.multiply(out, (g / total)[:, None], out=out)
        out[xp.arange(len(label)), label] -= g


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
        "softmax_cross_entropy", "reduce", _xent_infer, _xent, _xent_vjp, scratch=_row_scratch
    )
)
register(
    Primitive(
        "softmax_cross_entropy_grad", "normalize", _xent_grad_infer, _xent_grad,
        _xent_grad_vjp, inplace=((0, 0),),
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
    """
    (logits,), (labels,) = tensors(logits), tensors(labels)
    if labels.dtype.kind == "f":
        need(labels.shape == logits.shape, "softmax_cross_entropy", [logits.spec, labels.spec],
             "probabilities of the shape of the logits, or whole-number labels")  # fmt: skip
        axis = logits.ndim - 1
        products = labels * apply("log_softmax", logits, axis=axis)
        return -apply("sum", products, axis=(axis,), keepdims=False)
    return apply("softmax_cross_entropy", logits, labels)[0]
