"""Recurrent networks over whole sequences: one operation holds the loop over time.

The gates that a gradient needs are outputs of the forward operation. Gradients of gradients
are not defined here. Dimension key: T steps, B sequences, I inputs, H states.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hpctrain.autograd import Primitive, Spec, apply, as_tensor, register
from hpctrain.autograd.narrow import wide
from hpctrain.errors import ShapeError
from hpctrain.ops import gru_kernel, lstm_kernel
from hpctrain.ops.dnnl_steps import StepProduct
from hpctrain.ops.gru_kernel import (
    gru_backward,
    gru_backward_scratch,
    gru_forward,
    gru_scratch,
)
from hpctrain.ops.lstm_kernel import (
    lstm_backward,
    lstm_backward_scratch,
    lstm_forward,
    lstm_scratch,
)

__all__ = ["gru", "lstm"]


def lstm(x: Any, h0: Any, c0: Any, w_x: Any, w_h: Any, bias: Any) -> tuple[Any, ...]:
    """Run a long short-term memory over sequences.

    Parameters
    ----------
    x : Tensor, shape (T, B, I)
    h0, c0 : Tensor, shape (B, H), same dtype
        State and cell before the first step.
    w_x : Tensor, shape (4 H, I)
    w_h : Tensor, shape (4 H, H)
    bias : Tensor, shape (4 H,)
        Gates in the order i, f, g, o.

    Returns
    -------
    y : Tensor, shape (T, B, H)
    h_n, c_n : Tensor, shape (B, H)
    gates : Tensor, shape (T, B, 4 H)
        After their functions; for the gradient, as are the cells.
    cells : Tensor, shape (T, B, H)

    References
    ----------
    Hochreiter and Schmidhuber, "Long short-term memory", Neural Comput. 9 (1997) 1735-1780;
    Gers, Schmidhuber and Cummins, Neural Comput. 12 (2000) 2451-2471 (the forget gate).
    """
    x = as_tensor(x)
    return tuple(apply("lstm", x, *(as_tensor(a, like=x) for a in (h0, c0, w_x, w_h, bias))))


def gru(x: Any, h0: Any, w_x: Any, w_h: Any, b_x: Any, b_h: Any) -> tuple[Any, ...]:
    """Run a gated recurrent unit over sequences.

    Parameters
    ----------
    x : Tensor, shape (T, B, I)
    h0 : Tensor, shape (B, H), same dtype
    w_x : Tensor, shape (3 H, I)
    w_h : Tensor, shape (3 H, H)
    b_x, b_h : Tensor, shape (3 H,)
        Gates in the order r, z, n; the reset gate multiplies the recurrent product and its
        bias, ``n = tanh(x w_n + b_xn + r (h u_n + b_hn))``.

    Returns
    -------
    y : Tensor, shape (T, B, H)
    h_n : Tensor, shape (B, H)
    gates : Tensor, shape (T, B, 3 H)
        After their functions; for the gradient, as is ``inner``.
    inner : Tensor, shape (T, B, H)
        ``h u_n + b_hn`` of each step.

    References
    ----------
    Cho et al., "Learning phrase representations using RNN encoder-decoder", Proc. EMNLP (2014)
    1724-1734; the place of the reset gate is that of version 1 of the paper.
    """
    x = as_tensor(x)
    return tuple(apply("gru", x, *(as_tensor(a, like=x) for a in (h0, w_x, w_h, b_x, b_h))))


def _check(where: str, names: str, got: Sequence[Spec], wanted: Sequence[Any]) -> None:
    """Refuse arrays that are not of the shapes that x and h0 ask for.

    Factors of products are bfloat16 all together, or none is.
    """
    x = got[0]
    for name, spec, shape in zip(names.split(), got, wanted, strict=True):
        like = x if name in ("x", "w_x", "w_h") else wide(x)
        if spec != like.with_shape(shape) or wide(x).dtype.kind != "f":
            raise ShapeError(
                f"{where}: got {name} as {spec}, needed {x.dtype}{list(shape)} for x {x} and "
                f"states {got[1]}"
            )


def _sizes(where: str, x: Spec, h0: Spec) -> tuple[int, int, int, int]:
    if x.ndim != 3 or h0.ndim != 2:
        raise ShapeError(f"{where}: got x {x} and states {h0}, needed (T, B, I) and (B, H)")
    return (*x.shape, h0.shape[1])  # type: ignore[return-value]


def _lstm_infer(specs: Sequence[Spec]) -> list[Spec]:
    x, h0 = specs[:2]
    t, b, i, h = _sizes("lstm", x, h0)
    shapes = [x.shape, (b, h), (b, h), (4 * h, i), (4 * h, h), (4 * h,)]
    _check("lstm", "x h0 c0 w_x w_h bias", specs, shapes)
    x = wide(x)
    return [x.with_shape((t, b, h)), h0, h0, *(x.with_shape((t, b, n)) for n in (4 * h, h))]


def _given(where: str, outputs: Any, cotangents: Any, count: int) -> list[Any]:
    """Return the first ``count`` cotangents, zeros where there is none; refuse the others."""
    if any(c is not None for c in cotangents[count:]):
        raise ShapeError(
            f"{where}: got a cotangent of the saved gates, needed none; they are there for the "
            "gradient of the other outputs"
        )
    pairs = zip(outputs[:count], cotangents[:count], strict=True)
    return [apply("zeros_like", o) if c is None else c for o, c in pairs]


def _lstm_vjp(inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
    x, h0, c0, w_x, w_h, bias = inputs
    y, _, _, gates, cells = outputs
    given = _given("lstm", outputs, cotangents, 3)
    dgates, dh0, dc0 = apply("lstm_grad", *given, c0, w_h, gates, cells)
    # Weights first: their gradients may be sent while that of the input is computed.
    dw_x, dw_h = _to_weight(dgates, x, w_x), _to_weight(dgates, _former(h0, y), w_h)
    dbias = _to_bias(dgates, bias)
    return [_to_input(dgates, x, w_x), dh0, dc0, dw_x, dw_h, dbias]


def _former(h0: Any, y: Any) -> Any:
    """Return the state before each step."""
    first = apply("reshape", h0, shape=(1, *h0.shape))
    if y.shape[0] < 2:
        return first if y.shape[0] else y
    return apply("concat", first, y[:-1], axis=0)


def _rows(x: Any) -> Any:
    """View (T, B, N) as (T B, N)."""
    return apply("reshape", x, shape=(x.shape[0] * x.shape[1], x.shape[2]))


def _to_weight(dgates: Any, x: Any, weight: Any) -> Any:
    if not weight.requires_grad:
        return None
    return apply("matmul", _rows(dgates), _rows(x), transpose_a=True, transpose_b=False)


def _to_bias(dgates: Any, bias: Any) -> Any:
    return apply("sum", dgates, axis=(0, 1), keepdims=False) if bias.requires_grad else None


def _to_input(dgates: Any, x: Any, weight: Any) -> Any:
    if not x.requires_grad:
        return None
    return apply("matmul", dgates, weight, transpose_a=False, transpose_b=False)


def _lstm_grad_infer(specs: Sequence[Spec]) -> list[Spec]:
    return [specs[5], specs[1], specs[2]]


def _gru_infer(specs: Sequence[Spec]) -> list[Spec]:
    x, h0 = specs[:2]
    t, b, i, h = _sizes("gru", x, h0)
    shapes = [x.shape, (b, h), (3 * h, i), (3 * h, h), (3 * h,), (3 * h,)]
    _check("gru", "x h0 w_x w_h b_x b_h", specs, shapes)
    x = wide(x)
    return [x.with_shape((t, b, h)), h0, *(x.with_shape((t, b, n)) for n in (3 * h, h))]


def _gru_vjp(inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
    x, h0, w_x, w_h, b_x, b_h = inputs
    y, _, gates, inner = outputs
    given = _given("gru", outputs, cotangents, 2)
    outer, recurrent, dh0 = apply("gru_grad", *given, h0, w_h, y, gates, inner)
    dw_x, dw_h = _to_weight(outer, x, w_x), _to_weight(recurrent, _former(h0, y), w_h)
    db_x, db_h = _to_bias(outer, b_x), _to_bias(recurrent, b_h)
    return [_to_input(outer, x, w_x), dh0, dw_x, dw_h, db_x, db_h]


def _gru_grad_infer(specs: Sequence[Spec]) -> list[Spec]:
    return [specs[5], specs[5], specs[1]]


def _narrow(
    step: StepProduct, state: int, factors: Sequence[int]
) -> Callable[..., Sequence[int]]:
    """Make the column ``narrow``: inputs ``factors``, the last of them the weight of a step."""

    def rule(specs: Sequence[Spec]) -> Sequence[int]:
        rows, weight = specs[state].shape[0], specs[factors[-1]]
        return factors if step.narrows(rows, weight) else ()

    return rule


register(Primitive("lstm", "recurrent", _lstm_infer, lstm_forward, _lstm_vjp,
                   scratch=lstm_scratch,
                   loops=True,
                   narrow=_narrow(lstm_kernel.NARROW_GATES, 1, (0, 3, 4))))  # fmt: skip
register(Primitive("lstm_grad", "recurrent", _lstm_grad_infer, lstm_backward,
                   scratch=lambda s: lstm_backward_scratch(s[1], s[4]),
                   inplace=((5, 0),),
                   loops=True,
                   narrow=_narrow(lstm_kernel.NARROW_BACK, 1, (4,))))  # fmt: skip
register(Primitive("gru", "recurrent", _gru_infer, gru_forward, _gru_vjp,
                   scratch=gru_scratch,
                   loops=True,
                   narrow=_narrow(gru_kernel.NARROW_GATES, 1, (0, 2, 3))))  # fmt: skip
register(Primitive("gru_grad", "recurrent", _gru_grad_infer, gru_backward,
                   scratch=lambda s: gru_backward_scratch(s[2], s[3]),
                   inplace=((5, 0),),
                   loops=True,
                   narrow=_narrow(lstm_kernel.NARROW_BACK, 2, (3,))))  # fmt: skip
