"""Batch normalisation; the kernels are in `hpctrain.ops.moments`.

Normalisation brings groups of elements to mean 0 and variance 1, then scales and shifts each
channel (last axis) by ``gamma`` and ``beta``. Here a group is a channel of the whole batch; in
`hpctrain.ops.layer_norm` it is a row.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from hpctrain.autograd import Primitive, Spec, apply, as_tensor, element, register
from hpctrain.errors import ShapeError
from hpctrain.ops.blocks import row_spec
from hpctrain.ops.dnnl_norm import batch_grad_program
from hpctrain.ops.dnnl_row import TwoKernels
from hpctrain.ops.moments import (
    batch_normalise,
    batch_pull_back,
    batch_scratch,
    reciprocal_root,
    rescale,
)

__all__ = [
    "batch_norm", "batch_norm_inference", "check_vectors", "plus", "pull_back_again",
    "same_shapes",
]  # fmt: skip


def batch_norm(x: Any, gamma: Any, beta: Any, eps: float = 1e-5) -> tuple[Any, Any, Any]:
    """Normalise each channel with its own statistics, as in training.

    Parameters
    ----------
    x : Tensor, shape (..., C)
    gamma, beta : Tensor, shape (C,), same dtype
        Scale and shift.
    eps : float
        Added to the variance.

    Returns
    -------
    y : Tensor, shape of ``x``
    mean, var : Tensor, shape (C,)
        Statistics over all axes but the last; the variance is the biased one.

    References
    ----------
    Ioffe and Szegedy, "Batch normalization", Proc. ICML (2015) 448-456.
    """
    x = as_tensor(x)
    vectors = (as_tensor(gamma, like=x), as_tensor(beta, like=x))
    return apply("batch_norm", x, *vectors, eps=float(eps))


def batch_norm_inference(
    x: Any, gamma: Any, beta: Any, mean: Any, var: Any, eps: float = 1e-5
) -> Any:
    """Normalise each channel with given statistics.

    Parameters
    ----------
    x : Tensor, shape (..., C)
    gamma, beta, mean, var : Tensor, shape (C,), same dtype
    eps : float

    Returns
    -------
    Tensor, shape of ``x``
    """
    x = as_tensor(x)
    gamma, beta, mean, var = (as_tensor(v, like=x) for v in (gamma, beta, mean, var))
    rstd = apply("rstd", var, eps=float(eps))
    scale = apply("multiply", gamma, rstd)
    shift = apply("subtract", beta, apply("multiply", mean, scale))
    return apply("rescale", x, scale, shift)


def check_vectors(where: str, x: Spec, vectors: Sequence[Spec]) -> None:
    """Raise `ShapeError` unless ``vectors`` have one element for each channel of ``x``."""
    fits = [v == Spec(x.shape[-1:], x.dtype) for v in vectors]
    if x.ndim < 2 or x.dtype.kind != "f" or not all(fits):
        got = ", ".join(map(str, vectors))
        raise ShapeError(
            f"{where}: got {x} with {got}, needed floats (..., C) and vectors of C of one dtype"
        )


def _batch_infer(specs: Sequence[Spec], *, eps: float) -> list[Spec]:
    x, gamma, beta = specs
    check_vectors("batch_norm", x, [gamma, beta])
    return [x, gamma, gamma]


def _batch_kernel(xp: Any, ins: Any, outs: Any, scratch: Any, *, eps: float) -> None:
    batch_normalise(xp, ins, outs, eps, scratch)


def _batch_parts(inputs: Any, *, eps: float) -> list[Any]:
    """Write it as sums and element-wise operations: one pass for mean and variance.

    Both are those of x - a, for a the mean of the first of N images, which fused kernels sum
    together. Digits are lost where a is far from the mean, but a part of 1 / N of the elements
    cannot be further from it than the root of N variances.

    The deviation from the mean stands here twice, so that it need not be kept.
    """
    x, gamma, beta = inputs
    axes = tuple(range(x.ndim - 1))
    first = apply("mean", apply("identity", x[:1]), axis=axes, keepdims=False)  # fuses
    moved = x - first
    off = apply("mean", moved, axis=axes, keepdims=False)
    square = apply("mean", apply("square", moved), axis=axes, keepdims=False)
    mean, var = first + off, apply("relu", square - apply("square", off))
    return [(x - mean) * (gamma * apply("rstd", var, eps=eps)) + beta, mean, var]


def _batch_vjp(inputs: Any, outputs: Any, cotangents: Any, *, eps: float) -> list[Any]:
    (x, gamma, _), (_, mean, var), (dy, dmean, dvar) = inputs, outputs, cotangents
    dx = dgamma = dbeta = None
    if dy is not None:
        dx, dgamma, dbeta = apply("batch_norm_grad", dy, x, gamma, mean, var, eps=eps)
    share = 1.0 / max(1, math.prod(x.shape[:-1]))
    for term in (
        None if dmean is None else dmean * share,
        None if dvar is None else (x - mean) * (dvar * (2 * share)),
    ):
        if term is not None:
            wide = apply("broadcast_to", term, shape=x.shape)
            dx = wide if dx is None else apply("add", dx, wide)
    return [dx, dgamma, dbeta]


def same_shapes(specs: Sequence[Spec], **attrs: Any) -> list[Spec]:
    """Return the specs of the gradients of x, gamma and beta, from dy, x and gamma."""
    dy, x, gamma = specs[:3]
    if dy != x:
        raise ShapeError(f"norm gradient: got a cotangent {dy} for {x}")
    return [x, gamma, gamma]


def _batch_grad_kernel(xp: Any, ins: Any, outs: Any, scratch: Any, *, eps: float) -> None:
    batch_pull_back(xp, ins, outs, eps, scratch)


def _batch_grad_parts(inputs: Any, *, eps: float) -> list[Any]:
    """Write it as two sums, and what they are put together to element by element.

    The sums join what makes ``dy``, and what follows rounds ``dx`` where that is a factor.
    """
    dy, x, gamma, mean, var = inputs
    axes = tuple(range(x.ndim - 1))
    dbeta = apply("sum", dy, axis=axes, keepdims=False)
    pulled = apply("sum", dy * (x - mean), axis=axes, keepdims=False)
    rstd, share = apply("rstd", var, eps=eps), -1.0 / max(1, math.prod(x.shape[:-1]))
    dgamma, scale = pulled * rstd, gamma * rstd
    slope, shift = scale * rstd * dgamma * share, scale * dbeta * share
    return [dy * scale + (x - mean) * slope + shift, dgamma, dbeta]


def _batch_grad_vjp(inputs: Any, outputs: Any, cotangents: Any, *, eps: float) -> list[Any]:
    _, x, _, mean, var = inputs
    rstd = apply("rstd", var, eps=eps)
    average = _average(tuple(range(x.ndim - 1)))
    ddy, dx, dgamma = pull_back_again(inputs[:3], cotangents, (mean, rstd), average)
    # mean and var are functions of x, and what flows through them is already in dx
    return [ddy, dx, dgamma, None, None]


def _average(axes: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda t: apply("mean", t, axis=axes, keepdims=True)


def pull_back_again(inputs: Any, cotangents: Any, moments: Any, average: Any) -> Any:
    """Differentiate (dx, dgamma, dbeta) with respect to (dy, x, gamma).

    With h = gamma dy, xhat = (x - mean) rstd, E the mean over a group:
    dx = rstd P h, where P h = h - E[h] - xhat E[h xhat] is symmetric in h. ``average``
    is E, as a function of a tensor like x.
    """
    (dy, x, gamma), (u, v, w), (mean, rstd) = inputs, cotangents, moments
    axis = x.ndim - 1
    hat, h = (x - mean) * rstd, dy * gamma
    ddy = dx = to_gamma = to_hat = None

    def project(t: Any) -> Any:
        return (t - average(t) - hat * average(t * hat)) * rstd

    if u is not None:
        pulled = project(u)
        ddy = gamma * pulled
        to_gamma = apply("sum", dy * pulled, axis=tuple(range(axis)), keepdims=False)
        to_hat = -(u * average(h * hat) + h * average(u * hat)) * rstd
        dx = -(hat * rstd) * average(u * project(h))
    if v is not None:
        ddy = plus(ddy, hat * v)
        to_hat = plus(to_hat, dy * v)
    if w is not None:
        ddy = plus(ddy, apply("broadcast_to", w, shape=x.shape))
    if to_hat is not None:
        dx = plus(dx, project(to_hat))
    return ddy, dx, to_gamma


def plus(a: Any, b: Any) -> Any:
    """Return the sum of cotangents, the first of which may be missing."""
    return b if a is None else a + b


def _rstd_kernel(xp: Any, ins: Any, outs: Any, scratch: Any, *, eps: float) -> None:
    reciprocal_root(xp, ins[0], eps, outs[0])


def _rstd_vjp(inputs: Any, outputs: Any, cotangents: Any, *, eps: float) -> list[Any]:
    (rstd,) = outputs
    return [cotangents[0] * -0.5 * rstd * rstd * rstd]


def _rescale_infer(specs: Sequence[Spec]) -> list[Spec]:
    check_vectors("rescale", specs[0], specs[1:])
    return [specs[0]]


def _rescale_kernel(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    rescale(xp, ins, outs[0], scratch)


def _rescale_vjp(inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
    x, scale, _ = inputs
    (dy,) = cotangents
    axes = tuple(range(x.ndim - 1))
    return [
        lambda: apply("multiply", dy, scale),
        lambda: apply("sum", apply("multiply", dy, x), axis=axes, keepdims=False),
        lambda: apply("sum", dy, axis=axes, keepdims=False),
    ]


_BATCH_GRAD = TwoKernels(same_shapes, batch_grad_program, _batch_grad_kernel,
                         lambda s, **_: batch_scratch(s[1], 4))  # fmt: skip

register(Primitive("batch_norm", "normalize", _batch_infer, _batch_kernel, _batch_vjp,
                   scratch=lambda s, **_: batch_scratch(s[0], 3), parts=_batch_parts,
                   any_strides=True))  # fmt: skip
register(Primitive("batch_norm_grad", "normalize", same_shapes, _BATCH_GRAD.kernel,
                   _batch_grad_vjp, any_strides=True, parts=_batch_grad_parts,
                   **_BATCH_GRAD.columns))  # fmt: skip
register(Primitive("rstd", "elementwise", lambda s, **_: s, _rstd_kernel, _rstd_vjp,
                   inplace=((0, 0),),
                   element=lambda var, eps: 1.0 / element.sqrt(var + eps)))  # fmt: skip
register(Primitive("rescale", "normalize", _rescale_infer, _rescale_kernel, _rescale_vjp,
                   scratch=lambda s: [row_spec(s[0], s[0].shape[-1])] * 2,
                   any_strides=True))  # fmt: skip
