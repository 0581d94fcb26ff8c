"""Batch normalisation with statistics over all processes that share a batch.

An operation knows no processes. It is handed a *combiner*, a hashable callable
``combine(array, merge)`` that returns ``merge`` of the arrays of all processes, stacked along
a new first axis in one order: so all get the same bits. Arrays are float64, of a few numbers
for each channel. `ALONE` stands for one process; `hpctrain.parallel.together` has the other.

All processes must apply these operations in one order. So the rows are not pure: no pass
merges, moves or repeats them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.autograd import Primitive, Spec, apply, as_tensor, register
from hpctrain.errors import ShapeError
from hpctrain.ops.moments import batch_scratch
from hpctrain.ops.norm import check_vectors, pull_back_again
from hpctrain.ops.sync_moments import add_parts, sync_normalise, sync_pull_back

__all__ = ["ALONE", "Combiner", "sync_batch_norm"]

Combiner = Callable[[Any, Callable[[Any], Any]], Any]


@dataclass(frozen=True)
class _Alone:
    """The combiner of one process, which has the whole batch."""

    def __call__(self, array: Any, merge: Callable[[Any], Any]) -> Any:
        return array

    def __repr__(self) -> str:
        return "alone"


ALONE: Combiner = _Alone()


def sync_batch_norm(
    x: Any, gamma: Any, beta: Any, eps: float = 1e-5, combine: Combiner = ALONE
) -> tuple[Any, Any, Any]:
    """Normalise each channel with the statistics of the whole batch, as in training.

    Parameters
    ----------
    x : Tensor, shape (..., C)
        The part of this process; the lengths of all axes but the last may differ.
    gamma, beta : Tensor, shape (C,), same dtype
        Scale and shift, the same on all processes.
    eps : float
        Added to the variance.
    combine : callable
        See `hpctrain.ops.sync_norm`.

    Returns
    -------
    y : Tensor, shape of ``x``
    mean, var : Tensor, shape (C,)
        Statistics of the whole batch over all axes but the last, the same bits on all
        processes; the variance is the biased one.

    Notes
    -----
    The gradient is that of the sum of what all processes make of their parts; those of
    ``gamma`` and ``beta`` are the share of this process, and are to be summed like those of
    any parameter. One message of ``3 C`` numbers forward, one of ``2 C`` backward. In float32
    it is more accurate than `hpctrain.ops.batch_norm` where means are large.

    References
    ----------
    Peng et al., "MegDet: a large mini-batch object detector", CVPR (2018) 6181-6189, for
    statistics over processes; for the formulas see `hpctrain.ops.sync_moments`.
    """
    x = as_tensor(x)
    vectors = (as_tensor(gamma, like=x), as_tensor(beta, like=x))
    outputs = apply("sync_batch_norm", x, *vectors, eps=float(eps), combine=combine)
    return tuple(outputs[:3])


def _infer(specs: Sequence[Spec], *, eps: float, combine: Combiner) -> list[Spec]:
    x, gamma, beta = specs
    check_vectors("sync_batch_norm", x, [gamma, beta])
    # low is what the dtype of mean cannot hold of it; count the rows of the whole batch.
    return [x, gamma, gamma, gamma, x.with_shape(())]


def _kernel(xp: Any, ins: Any, outs: Any, scratch: Any, *, eps: float, combine: Any) -> None:
    sync_normalise(xp, ins, outs, scratch, eps, combine)


def _vjp(
    inputs: Any, outputs: Any, cotangents: Any, *, eps: float, combine: Combiner
) -> list[Any]:
    (x, gamma, _), (_, *moments), (dy, dmean, dvar) = inputs, outputs, cotangents[:3]
    mean, _, low, count = moments
    dx = dgamma = dbeta = None
    if dy is not None:
        made = apply("sync_batch_norm_grad", dy, x, gamma, *moments, eps=eps, combine=combine)
        dx, dgamma, dbeta = made
    if dmean is not None:
        shared = apply("sync_sum", dmean, combine=combine) / count
        wide = apply("broadcast_to", shared, shape=x.shape)
        dx = wide if dx is None else dx + wide
    if dvar is not None:
        shared = apply("sync_sum", dvar, combine=combine) / count
        wide = (x - mean - low) * (shared * 2.0)
        dx = wide if dx is None else dx + wide
    return [dx, dgamma, dbeta]


def _grad_infer(specs: Sequence[Spec], *, eps: float, combine: Combiner) -> list[Spec]:
    dy, x, gamma = specs[:3]
    if dy != x:
        raise ShapeError(f"sync_batch_norm gradient: got a cotangent {dy} for {x}")
    return [x, gamma, gamma]


def _grad_kernel(
    xp: Any, ins: Any, outs: Any, scratch: Any, *, eps: float, combine: Any
) -> None:
    sync_pull_back(xp, ins, outs, scratch, eps, combine)


def _grad_vjp(
    inputs: Any, outputs: Any, cotangents: Any, *, eps: float, combine: Combiner
) -> list[Any]:
    _, x, _, mean, var, low, count = inputs
    axes = tuple(range(x.ndim - 1))

    def average(t: Any) -> Any:
        own = apply("sum", t, axis=axes, keepdims=False)
        return apply("sync_sum", own, combine=combine) / count

    moments = mean + low, apply("rsqrt", var + eps)
    ddy, dx, dgamma = pull_back_again(inputs[:3], cotangents, moments, average)
    # The moments are functions of x, and what flows through them is already in dx.
    return [ddy, dx, dgamma, None, None, None, None]


def _sum_infer(specs: Sequence[Spec], *, combine: Combiner) -> list[Spec]:
    return [specs[0]]


def _sum_kernel(xp: Any, ins: Any, outs: Any, scratch: Any, *, combine: Any) -> None:
    outs[0][...] = combine(ins[0].astype("float64"), add_parts)


def _sum_vjp(inputs: Any, outputs: Any, cotangents: Any, *, combine: Combiner) -> list[Any]:
    # What one process makes of the sum depends on the parts of all.
    return [apply("sync_sum", cotangents[0], combine=combine)]


register(Primitive("sync_batch_norm", "normalize", _infer, _kernel, _vjp, pure=False,
                   scratch=lambda s, **_: batch_scratch(s[0], 4),
                   any_strides=True))  # fmt: skip
register(Primitive("sync_batch_norm_grad", "normalize", _grad_infer, _grad_kernel, _grad_vjp,
                   scratch=lambda s, **_: batch_scratch(s[1], 4), pure=False,
                   any_strides=True))  # fmt: skip
register(Primitive("sync_sum", "normalize", _sum_infer, _sum_kernel, _sum_vjp, pure=False,
                   any_strides=True))  # fmt: skip
