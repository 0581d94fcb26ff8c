"""Layer normalisation: each row to mean 0 and variance 1; see `hpctrain.ops.norm`."""

from collections.abc import Callable, Sequence
from typing import Any

from hpctrain.autograd import Primitive, Spec, apply, as_tensor, register
from hpctrain.ops.dnnl_norm import layer_grad_program, layer_program
from hpctrain.ops.dnnl_row import TwoKernels
from hpctrain.ops.moments import layer_normalise, layer_pull_back, layer_scratch
from hpctrain.ops.norm import check_vectors, plus, pull_back_again, same_shapes

__all__ = ["layer_norm"]


def layer_norm(x: Any, gamma: Any, beta: Any, eps: float = 1e-5) -> tuple[Any, Any, Any]:
    """Normalise each row, along the last axis.

    Parameters
    ----------
    x : Tensor, shape (..., C)
    gamma, beta : Tensor, shape (C,), same dtype
    eps : float

    Returns
    -------
    y : Tensor, shape of ``x``
    mean, rstd : Tensor, shape (...)
        Mean of each row, and one over the root of its variance plus ``eps``.

    References
    ----------
    Ba, Kiros and Hinton, "Layer normalization", arXiv:1607.06450 (2016).
    """
    x = as_tensor(x)
    vectors = (as_tensor(gamma, like=x), as_tensor(beta, like=x))
    return apply("layer_norm", x, *vectors, eps=float(eps))


def _layer_infer(specs: Sequence[Spec], *, eps: float) -> list[Spec]:
    x, gamma, beta = specs
    check_vectors("layer_norm", x, [gamma, beta])
    rows = x.with_shape(x.shape[:-1])
    return [x, rows, rows]


def _layer_kernel(xp: Any, ins: Any, outs: Any, scratch: Any, *, eps: float) -> None:
    layer_normalise(xp, ins, outs, eps, scratch)


def _layer_vjp(inputs: Any, outputs: Any, cotangents: Any, *, eps: float) -> list[Any]:
    (x, gamma, _), (_, mean, rstd), (dy, dmean, drstd) = inputs, outputs, cotangents
    dx = dgamma = dbeta = None
    if dy is not None:
        dx, dgamma, dbeta = apply("layer_norm_grad", dy, x, gamma, mean, rstd)
    share = 1.0 / x.shape[-1]
    if dmean is not None:
        wide = apply("broadcast_to", _column(dmean * share), shape=x.shape)
        dx = plus(dx, wide)
    if drstd is not None:
        cube = apply("multiply", rstd, apply("square", rstd))
        dx = plus(dx, (x - _column(mean)) * _column(drstd * cube * -share))
    return [dx, dgamma, dbeta]


def _column(rows: Any) -> Any:
    return apply("reshape", rows, shape=(*rows.shape, 1))


def _layer_grad_kernel(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    layer_pull_back(xp, ins, outs, scratch)


def _layer_grad_vjp(inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
    _, x, _, mean, rstd = inputs
    moments, average = (_column(mean), _column(rstd)), _average(x.ndim - 1)
    ddy, dx, dgamma = pull_back_again(inputs[:3], cotangents, moments, average)
    return [ddy, dx, dgamma, None, None]


def _average(axis: int) -> Callable[[Any], Any]:
    return lambda t: apply("mean", t, axis=(axis,), keepdims=True)


_LAYER = TwoKernels(_layer_infer, layer_program, _layer_kernel,
                    lambda s, **_: layer_scratch(s[0], 0))  # fmt: skip
_LAYER_GRAD = TwoKernels(same_shapes, layer_grad_program, _layer_grad_kernel,
                         lambda s, **_: layer_scratch(s[1], 3))  # fmt: skip

register(Primitive("layer_norm", "normalize", _layer_infer, _LAYER.kernel, _layer_vjp,
                   **_LAYER.columns))  # fmt: skip
register(Primitive("layer_norm_grad", "normalize", same_shapes, _LAYER_GRAD.kernel,
                   _layer_grad_vjp, **_LAYER_GRAD.columns))  # fmt: skip
