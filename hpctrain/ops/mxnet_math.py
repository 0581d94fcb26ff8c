"""MXNet's arithmetic, reductions and movement as functions of tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError, ShapeError
from hpctrain.ops import compare, elementwise, movement, reduce, unary
from hpctrain.ops.activations import relu, sigmoid, softplus, tanh
from hpctrain.ops.compare import clip
from hpctrain.ops.elementwise import add, cast, divide, multiply, ones_like, power, subtract
from hpctrain.ops.gather import one_hot, pick
from hpctrain.ops.linalg import matmul
from hpctrain.ops.movement import reshape, transpose
from hpctrain.ops.mxnet_row import (
    AXES,
    BOOL,
    BOUNDS,
    DTYPE,
    FLOAT,
    INT,
    MAYBE_FLOAT,
    MAYBE_INT,
    SHAPE,
    TEXT,
    Operator,
    Shape,
    alike,
)
from hpctrain.ops.slicing import concat, pad, stack
from hpctrain.ops.softmax import log_softmax, softmax

__all__ = ["MATH"]


# Arithmetic


def _elemwise(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def checked(lhs: Any, rhs: Any) -> Any:
        if lhs.shape != rhs.shape:
            raise ShapeError(
                f"{name}: got shapes {lhs.shape} and {rhs.shape}, needed equal ones; use "
                f"{name.replace('elemwise', 'broadcast')}"
            )
        return function(lhs, rhs)

    return checked


def _scalar(function: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    def apply_scalar(data: Any, *, scalar: float, **_: Any) -> Any:
        return function(scalar, data) if swapped else function(data, scalar)

    return apply_scalar


def _truth(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give 0 and 1 in the dtype of the data, as MXNet does."""
    return lambda lhs, rhs: cast(function(lhs, rhs), lhs.dtype)


_BINARY = {"add": add, "sub": subtract, "mul": multiply, "div": divide}
_BROADCAST = {
    **_BINARY, "power": power, "maximum": elementwise.maximum, "minimum": elementwise.minimum,
    "equal": _truth(compare.equal), "not_equal": _truth(compare.not_equal),
    "greater": _truth(compare.greater), "greater_equal": _truth(compare.greater_equal),
    "lesser": _truth(compare.less), "lesser_equal": _truth(compare.less_equal),
}  # fmt: skip
_SCALARS = {
    "_plus_scalar": _scalar(add), "_minus_scalar": _scalar(subtract),
    "_rminus_scalar": _scalar(subtract, True), "_mul_scalar": _scalar(multiply),
    "_div_scalar": _scalar(divide), "_rdiv_scalar": _scalar(divide, True),
    "_power_scalar": _scalar(power), "_maximum_scalar": _scalar(elementwise.maximum),
    "_minimum_scalar": _scalar(elementwise.minimum),
}  # fmt: skip
_UNARY = {
    **{n: getattr(unary, n) for n in
       ("abs", "exp", "expm1", "log", "log1p", "negative", "reciprocal", "rsqrt", "sign",
        "sqrt", "square")},
    "relu": relu, "sigmoid": sigmoid, "tanh": tanh, "softrelu": softplus,
    "zeros_like": elementwise.zeros_like, "ones_like": ones_like, "_copy": elementwise.identity,
}  # fmt: skip


# Reductions


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(data: Any, *, axis: Shape | None, keepdims: bool, exclude: bool) -> Any:
        axes = tuple(a % data.ndim for a in axis or ()) or tuple(range(data.ndim))
        if exclude and axis:
            axes = tuple(a for a in range(data.ndim) if a not in axes)
        y = function(data, axes, keepdims=keepdims)
        # MXNet 1.x knows no arrays without axes.
        return y if y.ndim else reshape(y, (1,))

    return reduced


def _argmax(data: Any, *, axis: int | None, keepdims: bool) -> Any:
    if axis is None:
        return cast(reduce.argmax(reshape(data, (1, -1)), 1), data.dtype)
    y = cast(reduce.argmax(data, axis), data.dtype)
    return movement.expand_dims(y, axis % data.ndim) if keepdims else y


def _pick(data: Any, index: Any, *, axis: int | None, keepdims: bool, mode: str) -> Any:
    if axis is None or axis % data.ndim != data.ndim - 1:
        raise ConfigError(f"pick: got axis {axis}, needed the last one")
    last = data.shape[-1]
    ids = cast(index, "int64")
    if ids.ndim == data.ndim:
        ids = reshape(ids, ids.shape[:-1])
    # MXNet does not complain of numbers out of range, it takes the nearest.
    y = pick(data, clip(ids, 0, last - 1))
    return movement.expand_dims(y, y.ndim) if keepdims else y


def _softmax(function: Callable[..., Any]) -> Callable[..., Any]:
    def tempered(
        data: Any, *, axis: int, temperature: float | None, dtype: str, **_: Any
    ) -> Any:
        if dtype != "None":
            data = cast(data, dtype)
        x = data if temperature in (None, 1) else data / temperature
        return function(x, axis)

    return tempered


# Movement


def _reshape(data: Any, *, shape: Shape, reverse: bool, **old: Any) -> Any:
    if not shape:  # what releases before 0.8 wrote: 0 stands for the length that is left
        target = old["target_shape"]
        kept = data.shape[:1] if old["keep_highest"] else target[:1]
        return reshape(data, [n or -1 for n in (*kept, *target[1:])])
    if reverse:
        return reshape(data, _decoded(data.shape[::-1], shape[::-1])[::-1])
    return reshape(data, _decoded(data.shape, shape))


def _decoded(old: Shape, codes: Shape) -> list[int]:
    """Replace MXNet's codes: 0 copies a length, -2 the rest, -3 joins two, -4 splits one."""
    at, place, shape = 0, 0, list[int]()
    while place < len(codes):
        code = codes[place]
        if code == 0:
            shape.append(_length(old, at, codes))
        elif code == -2:
            shape += old[at:]
            at = len(old)
        elif code == -3:
            shape.append(_length(old, at, codes) * _length(old, at + 1, codes))
            at += 1
        elif code == -4:
            shape += _halves(_length(old, at, codes), codes[place + 1 : place + 3])
            place += 2
        else:
            shape.append(code)
        at, place = at + 1, place + 1
    return shape


def _length(old: Shape, at: int, codes: Shape) -> int:
    if at >= len(old):
        raise ShapeError(f"Reshape: got shape {codes} for an array of shape {old}")
    return old[at]


def _halves(n: int, parts: Shape) -> list[int]:
    if len(parts) != 2:
        raise ShapeError(f"Reshape: got -4 with {parts} behind it, needed two lengths")
    a, b = parts
    return [n // b if a == -1 else a, n // a if b == -1 else b]


def _slice_channel(data: Any, *, num_outputs: int, axis: int, squeeze_axis: bool) -> Any:
    n = data.shape[axis]
    if n % num_outputs:
        raise ShapeError(f"SliceChannel: got {n} elements, needed a multiple of {num_outputs}")
    step, lead = n // num_outputs, (slice(None),) * (axis % data.ndim)
    parts = [data[(*lead, slice(i, i + step))] for i in range(0, n, step)]
    if squeeze_axis:
        parts = [movement.squeeze(part, axis % data.ndim) for part in parts]
    return tuple(parts) if num_outputs > 1 else parts[0]


def _slice_axis(data: Any, *, axis: int, begin: int, end: int | None) -> Any:
    return data[(*(slice(None),) * (axis % data.ndim), slice(begin, end))]


def _slice(data: Any, *, begin: Any, end: Any, step: Any) -> Any:
    steps = step or (None,) * len(begin)
    return data[tuple(slice(a, b, c) for a, b, c in zip(begin, end, steps, strict=True))]


def _swap(data: Any, *, dim1: int, dim2: int) -> Any:
    order = list(range(data.ndim))
    order[dim1], order[dim2] = order[dim2], order[dim1]
    return transpose(data, order)


def _pad(data: Any, *, mode: str, pad_width: Shape, constant_value: float) -> Any:
    if mode != "constant":
        raise ConfigError(f"Pad: got mode {mode!r}, needed constant")
    return pad(data, list(zip(pad_width[::2], pad_width[1::2], strict=True)), constant_value)


def _one_hot(indices: Any, **attrs: Any) -> Any:
    hot = one_hot(cast(indices, "int64"), attrs["depth"], np.dtype(attrs["dtype"]).name)
    on, off = attrs["on_value"], attrs["off_value"]
    return hot if (on, off) == (1, 0) else hot * (on - off) + off


def _dot(lhs: Any, rhs: Any, *, transpose_a: bool, transpose_b: bool) -> Any:
    """Return the product over the last axis of ``lhs`` and the first of ``rhs``."""
    a = transpose(lhs) if transpose_a else lhs
    b = transpose(rhs) if transpose_b else rhs
    if b.ndim <= 2:
        y = matmul(a, b)
    else:
        y = reshape(matmul(a, reshape(b, (b.shape[0], -1))), (*a.shape[:-1], *b.shape[1:]))
    return y if y.ndim else reshape(y, (1,))


_REDUCE = {"axis": AXES, "keepdims": BOOL.or_else(False), "exclude": BOOL.or_else(False)}
_PRODUCT = {"transpose_a": BOOL.or_else(False), "transpose_b": BOOL.or_else(False)}
_TEMPER = {
    "axis": INT.or_else(-1), "temperature": MAYBE_FLOAT,
    "dtype": DTYPE.or_else("None"), "use_length": BOOL.or_else(False),
}  # fmt: skip
_PAIR = ("lhs", "rhs")

MATH = (
    *(Operator(f"elemwise_{n}", _elemwise(f, f"elemwise_{n}"), _PAIR, shapes=alike,
               any_shape=True)
      for n, f in _BINARY.items()),
    *(Operator(f"broadcast_{n}", f, _PAIR) for n, f in _BROADCAST.items()),
    *(Operator(n, f, attrs={"scalar": FLOAT, "is_int": BOOL.or_else(True)})
      for n, f in _SCALARS.items()),
    *(Operator(n, f) for n, f in _UNARY.items()),
    *(Operator(n, _reduction(getattr(reduce, n)), attrs=_REDUCE)
      for n in ("sum", "mean", "max", "min")),
    Operator("argmax", _argmax, attrs={"axis": MAYBE_INT, "keepdims": BOOL.or_else(False)}),
    Operator("softmax", _softmax(softmax), attrs=_TEMPER),
    Operator("log_softmax", _softmax(log_softmax), attrs=_TEMPER),
    Operator("clip", lambda data, a_min, a_max: clip(data, a_min, a_max),
             attrs={"a_min": FLOAT, "a_max": FLOAT}),
    Operator("Cast", lambda data, dtype: cast(data, dtype), attrs={"dtype": DTYPE}),
    Operator("Reshape", _reshape,
             attrs={"shape": SHAPE.or_else(()), "reverse": BOOL.or_else(False),
                    "target_shape": SHAPE.or_else(()), "keep_highest": BOOL.or_else(False)}),
    Operator("transpose", lambda data, axes: transpose(data, axes or None),
             attrs={"axes": SHAPE.or_else(())}),
    Operator("SwapAxis", _swap, attrs={"dim1": INT.or_else(0), "dim2": INT.or_else(0)}),
    Operator("squeeze", lambda data, axis: movement.squeeze(data, axis), attrs={"axis": AXES}),
    Operator("Concat", lambda *data, dim, num_args: concat(data, dim), (),
             {"dim": INT.or_else(1), "num_args": INT}, count="num_args"),
    Operator("stack", lambda *data, axis, num_args: stack(data, axis), (),
             {"axis": INT.or_else(0), "num_args": INT}, count="num_args"),
    Operator("SliceChannel", _slice_channel,
             attrs={"num_outputs": INT, "axis": INT.or_else(1),
                    "squeeze_axis": BOOL.or_else(False)},
             outputs=lambda attrs: int(attrs["num_outputs"])),
    Operator("slice_axis", _slice_axis, attrs={"axis": INT, "begin": INT, "end": MAYBE_INT}),
    Operator("slice", _slice,
             attrs={"begin": BOUNDS, "end": BOUNDS, "step": BOUNDS.or_else(())}),
    Operator("Pad", _pad, attrs={"mode": TEXT, "pad_width": SHAPE,
                                 "constant_value": FLOAT.or_else(0.0)}),
    Operator("one_hot", _one_hot, ("indices",),
             {"depth": INT, "on_value": FLOAT.or_else(1.0), "off_value": FLOAT.or_else(0.0),
              "dtype": DTYPE.or_else("float32")}),
    Operator("pick", _pick, ("data", "index"),
             {"axis": INT.or_else(-1), "keepdims": BOOL.or_else(False),
              "mode": TEXT.or_else("clip")}),
    Operator("dot", _dot, _PAIR, _PRODUCT),
    Operator("batch_dot", lambda lhs, rhs, transpose_a, transpose_b:
             matmul(lhs, rhs, transpose_a, transpose_b), _PAIR, _PRODUCT),
)  # fmt: skip
