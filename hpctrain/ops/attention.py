"""Scaled dot-product attention that never holds all scores of a sequence at once.

One head of one sequence at a time, a block of queries at a time, so that scores stay in
cache. Saved for the gradient is the log of the sum of exponentials of each row of scores;
the probabilities are computed anew (Dao et al., "FlashAttention", NeurIPS 35, 2022).

Dimension key: B sequences, H heads, T queries, S keys, D width of a head.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, as_tensor, register
from hpctrain.autograd.narrow import wide
from hpctrain.errors import ShapeError
from hpctrain.ops.attention_programs import backward_programs, forward_programs
from hpctrain.ops.dnnl_row import Products
from hpctrain.ops.scores import average, block_scratch, pull_back

__all__ = ["attention", "self_attention"]

HEADS = (0, 2, 1, 3)  # from (B, T, H, D) to (B, H, T, D) and back


def attention(
    q: Any, k: Any, v: Any, causal: bool = False, scale: float | None = None
) -> tuple[Any, Any]:
    """Return the values, averaged with the softmax of query times key as weights.

    Parameters
    ----------
    q : Tensor, shape (B, H, T, D), any strides
    k, v : Tensor, shape (B, H, S, D), same dtype
    causal : bool
        Query t sees only keys 0 to t; needs ``T == S``.
    scale : float, optional
        Factor of the scores, ``D ** -0.5`` if None.

    Returns
    -------
    y : Tensor, shape (B, H, T, D)
        Laid out so that ``y.transpose(0, 2, 1, 3)`` is contiguous: heads join without a copy.
    saved : Tensor, shape (B, H, T)
        Log of the sum of exponentials of the scores, for the gradient.
    """
    q = as_tensor(q)
    k, v = as_tensor(k, like=q), as_tensor(v, like=q)
    factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
    y, saved = apply("attention", q, k, v, causal=bool(causal), scale=factor)
    return apply("transpose", y, axes=HEADS), saved


def self_attention(
    qkv: Any, heads: int, causal: bool = False, scale: float | None = None
) -> tuple[Any, Any]:
    """Attend with queries, keys and values that lie side by side, as one dense layer gives.

    Parameters
    ----------
    qkv : Tensor, shape (B, T, 3 H D)
        Queries of all heads, then keys, then values.
    heads : int
        H.
    causal, scale
        As for `attention`.

    Returns
    -------
    y : Tensor, shape (B, T, H D)
    saved : Tensor, shape (B, H, T)

    Notes
    -----
    The gradient is written in the same layout, so nothing is taken apart or joined.
    """
    qkv = as_tensor(qkv)
    factor = (qkv.shape[-1] // (3 * heads)) ** -0.5 if scale is None else float(scale)
    attrs = {"heads": int(heads), "causal": bool(causal), "scale": factor}
    return apply("self_attention", qkv, **attrs)


def _infer(specs: Sequence[Spec], *, causal: bool, scale: float) -> list[Spec]:
    q, k, v = specs
    fits = q.ndim == k.ndim == 4 and k == v and q.dtype == k.dtype and q.dtype.kind == "f"
    if not (fits and q.shape[:2] == k.shape[:2] and q.shape[3] == k.shape[3]):
        raise ShapeError(f"attention: got {q}, {k}, {v}, needed (B, H, T, D) and (B, H, S, D)")
    if causal and q.shape[2] != k.shape[2]:
        raise ShapeError(
            f"attention: got {q.shape[2]} queries and {k.shape[2]} keys, needed as many "
            "keys as queries for causal attention"
        )
    b, h, t, d = q.shape
    return [q.with_shape((b, t, h, d)), q.with_shape((b, h, t))]


def _scratch(specs: Sequence[Spec], **attrs: Any) -> list[Spec]:
    return block_scratch(specs[0], specs[1], 1)


def _kernel(xp: Any, ins: Any, outs: Any, scratch: Any, **attrs: Any) -> None:
    y, saved = outs
    average(xp, ins, (y.transpose(0, 2, 1, 3), saved), scratch, attrs)


def _refuse(where: str, cotangent: Any) -> None:
    if cotangent is not None:
        raise ShapeError(
            f"{where}: got a cotangent of the second output, needed none; it is there for the "
            "gradient of the first, and has no rule of its own"
        )


def _vjp(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> Sequence[Any]:
    dy, more = cotangents
    _refuse("attention", more)
    given = (apply("transpose", dy, axes=HEADS), *inputs, outputs[1])
    return list(apply("attention_grad", *given, **attrs))


def _grad_infer(specs: Sequence[Spec], **attrs: Any) -> list[Spec]:
    dy, q, k, v = specs[:4]
    if dy != q:
        raise ShapeError(f"attention_grad: got a cotangent {dy}, needed {q}")
    return [q, k, v]


def _grad_scratch(specs: Sequence[Spec], **attrs: Any) -> list[Spec]:
    return block_scratch(specs[1], specs[2], 2)


def _grad_kernel(xp: Any, ins: Any, outs: Any, scratch: Any, **attrs: Any) -> None:
    pull_back(xp, ins, outs, scratch, attrs)


def _grad_vjp(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> list[Any]:
    return [*_second(inputs, cotangents, **attrs), None]


def _second(
    inputs: Any, cotangents: Any, *, causal: bool, scale: float
) -> tuple[Any, Any, Any, Any]:
    """Differentiate (dq, dk, dv) with respect to (dy, q, k, v).

    With P the probabilities, R t = P (t - row sums of P t) the softmax rule and
    dS = R(dy v'): dq = c dS k, dk = c dS' q, dv = P' dy. ``saved`` is a function of q and k,
    and what flows through it is in their results.
    """
    dy, q, k, v, saved = inputs
    to_q, to_k, to_v = cotangents
    p = _probabilities(q, k, saved, causal, scale)
    dp = _product(dy, v, False, True)

    def rule(t: Any) -> Any:
        return p * (t - apply("sum", p * t, axis=(3,), keepdims=True))

    ds, through, q_more, k_more = rule(dp), p * 0, q * 0, k * 0
    dy_more, to_p = dy * 0, p * 0
    if to_q is not None:
        through = through + _product(to_q, k, False, True) * scale
        k_more = k_more + _product(ds, to_q, True, False) * scale
    if to_k is not None:
        through = through + _product(q, to_k, False, True) * scale
        q_more = q_more + _product(ds, to_k, False, False) * scale
    if to_v is not None:
        dy_more = dy_more + _product(p, to_v, False, False)
        to_p = to_p + _product(dy, to_v, False, True)
    pulled = rule(through)
    inner = apply("sum", p * dp, axis=(3,), keepdims=True)
    outer = apply("sum", p * through, axis=(3,), keepdims=True)
    to_s = rule(to_p + through * (dp - inner) - dp * outer) * scale
    return (
        dy_more + _product(pulled, v, False, False),
        q_more + _product(to_s, k, False, False),
        k_more + _product(to_s, q, True, False),
        _product(pulled, dy, True, False),
    )


def _product(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
    return apply("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def _probabilities(q: Any, k: Any, saved: Any, causal: bool, scale: float) -> Any:
    scores = _product(q, k, False, True) * scale
    p = apply("exp", scores - apply("reshape", saved, shape=(*saved.shape, 1)))
    if not causal:
        return p
    return p * as_tensor(np.tril(np.ones(p.shape[2:], p.dtype)), like=p)


def _parts(qkv: Any, heads: int) -> list[Any]:
    """View (B, T, 3 H D) as three arrays (B, H, T, D)."""
    b, t, width = qkv.shape
    parts = qkv.reshape(b, t, 3, heads, width // (3 * heads))
    return [parts[:, :, i].transpose(HEADS) for i in range(3)]


def _split(y: Any, heads: int) -> Any:
    """View (B, T, H D) as (B, H, T, D)."""
    b, t, width = y.shape
    return y.reshape(b, t, heads, width // heads).transpose(HEADS)


def _part_specs(qkv: Spec, heads: int) -> list[Spec]:
    if qkv.ndim != 3 or heads < 1 or qkv.shape[2] % (3 * heads):
        raise ShapeError(
            f"self_attention: got {qkv} and {heads} heads, needed (B, T, 3 H D) with H = heads"
        )
    b, t, width = qkv.shape
    return [qkv.with_shape((b, heads, t, width // (3 * heads)))] * 3


def _self_infer(specs: Sequence[Spec], *, heads: int, **attrs: Any) -> list[Spec]:
    qkv = wide(specs[0])
    _, saved = _infer(_part_specs(qkv, heads), **attrs)
    return [qkv.with_shape((*qkv.shape[:2], qkv.shape[2] // 3)), saved]


def _self_scratch(specs: Sequence[Spec], *, heads: int, **attrs: Any) -> list[Spec]:
    q, k, _ = _part_specs(specs[0], heads)
    return block_scratch(q, k, 1)


def _self_kernel(
    xp: Any, ins: Any, outs: Any, scratch: Any, *, heads: int, **attrs: Any
) -> None:
    y, saved = outs
    average(xp, _parts(ins[0], heads), (_split(y, heads), saved), scratch, attrs)


def _self_vjp(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> list[Any]:
    dy, more = cotangents
    _refuse("self_attention", more)
    return [apply("self_attention_grad", dy, inputs[0], outputs[1], **attrs)]


def _self_grad_infer(specs: Sequence[Spec], **attrs: Any) -> list[Spec]:
    dy, qkv, _ = specs
    (y, _) = _self_infer([qkv], **attrs)
    if wide(dy) != y or dy.dtype != qkv.dtype:
        raise ShapeError(f"self_attention_grad: got a cotangent {dy} for {qkv}, needed {y}")
    return [wide(qkv)]


def _self_grad_scratch(specs: Sequence[Spec], *, heads: int, **attrs: Any) -> list[Spec]:
    q, k, _ = _part_specs(specs[1], heads)
    return block_scratch(q, k, 2)


def _self_grad_kernel(
    xp: Any, ins: Any, outs: Any, scratch: Any, *, heads: int, **attrs: Any
) -> None:
    dy, qkv, saved = ins
    given = (_split(dy, heads), *_parts(qkv, heads), saved)
    pull_back(xp, given, _parts(outs[0], heads), scratch, attrs)


def _self_grad_vjp(
    inputs: Any, outputs: Any, cotangents: Any, *, heads: int, **attrs: Any
) -> list[Any]:
    dy, qkv, saved = inputs
    given = (_split(dy, heads), *_parts(qkv, heads), saved)
    dy_more, *parts = _second(given, _parts(cotangents[0], heads), **attrs)
    flat = [p.transpose(HEADS).reshape(dy.shape) for p in parts]
    return [dy_more.transpose(HEADS).reshape(dy.shape), apply("concat", *flat, axis=2), None]


register(Primitive("attention", "contract", _infer, _kernel, _vjp, scratch=_scratch))
register(Primitive("attention_grad", "contract", _grad_infer, _grad_kernel, _grad_vjp,
                   scratch=_grad_scratch))  # fmt: skip


_SELF = Products(_self_infer, kernel=_self_kernel, scratch=_self_scratch, factors=1,
                 **forward_programs())  # fmt: skip
_SELF_GRAD = Products(_self_grad_infer, kernel=_self_grad_kernel, scratch=_self_grad_scratch,
                      **backward_programs())  # fmt: skip
register(Primitive("self_attention", "contract", _self_infer, _SELF.kernel, _self_vjp,
                   **_SELF.columns))  # fmt: skip
register(Primitive("self_attention_grad", "contract", _self_grad_infer, _SELF_GRAD.kernel,
                   _self_grad_vjp, **_SELF_GRAD.columns))  # fmt: skip
