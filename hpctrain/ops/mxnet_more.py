"""More of MXNet's arithmetic and movement, and arrays that depend on nothing."""

from typing import Any

import numpy as np

from hpctrain.autograd import as_tensor
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.ops import compare, elementwise, movement
from hpctrain.ops.compare import clip, where
from hpctrain.ops.elementwise import cast, power
from hpctrain.ops.erf import erf
from hpctrain.ops.gather import take
from hpctrain.ops.movement import broadcast_to, reshape
from hpctrain.ops.mxnet_row import (
    AXES,
    BOOL,
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
from hpctrain.ops.reduce import sum
from hpctrain.ops.unary import abs, sqrt, square

__all__ = ["MORE"]


# Arithmetic


def _add_n(*data: Any, num_args: int) -> Any:
    total = data[0]
    for other in data[1:]:
        if other.shape != total.shape:
            raise ShapeError(f"add_n: got shapes {total.shape} and {other.shape}")
        total = total + other
    return total


def _compared(function: Any) -> Any:
    def truth(data: Any, *, scalar: float, **_: Any) -> Any:
        return cast(function(data, scalar), data.dtype)

    return truth


def _norm(data: Any, *, ord: int, axis: Shape | None, keepdims: bool, **_: Any) -> Any:
    if ord not in (1, 2):
        raise ConfigError(f"norm: got ord {ord}, needed 1 or 2")
    axes = axis or tuple(range(data.ndim))
    total = sum(abs(data) if ord == 1 else square(data), axes, keepdims=keepdims)
    y = total if ord == 1 else sqrt(total)
    return y if y.ndim else reshape(y, (1,))


def _smooth_l1(data: Any, *, scalar: float) -> Any:
    """Return the absolute value, rounded to a parabola near 0 (Girshick, ICCV 2015)."""
    s = scalar * scalar
    size = abs(data)
    return where(compare.greater(size, 1 / s), size - 0.5 / s, square(data) * (0.5 * s))


# Movement


def _broadcast_axis(data: Any, *, axis: Shape, size: Shape) -> Any:
    shape = list(data.shape)
    for where_, length in zip(axis, size, strict=True):
        shape[where_] = length
    return broadcast_to(data, shape)


def _broadcast_to(data: Any, *, shape: Shape) -> Any:
    return broadcast_to(data, [n or old for n, old in zip(shape, data.shape, strict=True)])


def _slice_like(data: Any, like: Any, *, axes: Shape) -> Any:
    chosen = {a % data.ndim for a in axes} or set(range(data.ndim))
    return data[tuple(slice(0, like.shape[i] if i in chosen else n)
                      for i, n in enumerate(data.shape))]  # fmt: skip


def _tile(data: Any, *, reps: Shape) -> Any:
    more = len(reps) - data.ndim
    x = reshape(data, ((1,) * more + data.shape)) if more > 0 else data
    return movement.tile(x, (1,) * -more + reps)


def _repeat(data: Any, *, repeats: int, axis: int | None) -> Any:
    if axis is None:
        return movement.repeat(reshape(data, (-1,)), repeats, 0)
    return movement.repeat(data, repeats, axis)


def _take(a: Any, indices: Any, *, axis: int, mode: str) -> Any:
    if mode != "clip":
        raise ConfigError(f"take: got mode {mode!r}, needed clip")
    ids = clip(cast(indices, "int64"), 0, a.shape[axis] - 1)
    return take(a, ids, axis)


def _where(condition: Any, x: Any, y: Any) -> Any:
    truth = compare.not_equal(condition, 0)
    if truth.ndim == 1 and x.ndim > 1:  # chooses rows
        truth = reshape(truth, (-1, *(1,) * (x.ndim - 1)))
    return where(truth, x, y)


# Arrays that depend on nothing


def _filled(value: float | None) -> Any:
    def made(*, shape: Shape, dtype: str, like: Any, **attrs: Any) -> Any:
        number = attrs["value"] if value is None else value
        return as_tensor(np.full(shape, number, "float32" if dtype == "None" else dtype), like)

    return made


def _arange(*, like: Any, **attrs: Any) -> Any:
    start, stop = attrs["start"], attrs["stop"]
    if stop is None:
        start, stop = 0.0, start
    numbers = np.arange(start, stop, attrs["step"]).astype(attrs["dtype"])
    return as_tensor(np.repeat(numbers, attrs["repeat"]), like)


_MADE = {"shape": SHAPE.or_else(()), "dtype": DTYPE.or_else("float32")}
_PAIR = ("lhs", "rhs")
_COMPARE = {
    "equal": compare.equal, "not_equal": compare.not_equal, "greater": compare.greater,
    "greater_equal": compare.greater_equal, "lesser": compare.less,
    "lesser_equal": compare.less_equal,
}  # fmt: skip

MORE = (
    Operator("add_n", _add_n, (), {"num_args": INT}, count="num_args", shapes=alike,
             any_shape=True),
    Operator("_grad_add", elementwise.add, _PAIR, shapes=alike, any_shape=True),
    *(Operator(name, function, _PAIR, shapes=alike, any_shape=True)
      for name, function in (("_power", power), ("_maximum", elementwise.maximum),
                             ("_minimum", elementwise.minimum))),
    *(Operator(f"_{name}_scalar", _compared(function),
               attrs={"scalar": FLOAT, "is_int": BOOL.or_else(True)})
      for name, function in _COMPARE.items()),
    Operator("_rpower_scalar", lambda data, scalar, is_int: power(scalar, data),
             attrs={"scalar": FLOAT, "is_int": BOOL.or_else(True)}),
    Operator("smooth_l1", _smooth_l1, attrs={"scalar": FLOAT.or_else(1.0)}),
    Operator("hard_sigmoid", lambda data, alpha, beta: clip(data * alpha + beta, 0, 1),
             attrs={"alpha": FLOAT.or_else(0.2), "beta": FLOAT.or_else(0.5)}),
    Operator("softsign", lambda data: data / (abs(data) + 1)),
    Operator("erf", lambda data: erf(data)),
    Operator("norm", _norm,
             attrs={"ord": INT.or_else(2), "axis": AXES, "keepdims": BOOL.or_else(False),
                    "out_dtype": TEXT.or_else("None")}),
    Operator("broadcast_axis", _broadcast_axis,
             attrs={"axis": SHAPE.or_else(()), "size": SHAPE.or_else(())}),
    Operator("broadcast_to", _broadcast_to, attrs={"shape": SHAPE}),
    Operator("broadcast_like", lambda lhs, rhs: broadcast_to(lhs, rhs.shape), _PAIR),
    Operator("reshape_like", lambda lhs, rhs: reshape(lhs, rhs.shape), _PAIR),
    Operator("slice_like", _slice_like, ("data", "shape_like"), {"axes": SHAPE.or_else(())}),
    Operator("tile", _tile, attrs={"reps": SHAPE}),
    Operator("repeat", _repeat, attrs={"repeats": INT, "axis": MAYBE_INT}),
    Operator("reverse", lambda data, axis: movement.flip(data, axis), attrs={"axis": SHAPE}),
    Operator("take", _take, ("a", "indices"),
             {"axis": INT.or_else(0), "mode": TEXT.or_else("clip")}),
    Operator("where", _where, ("condition", "x", "y")),
    Operator("_zeros", _filled(0.0), (), _MADE, source=True),
    Operator("_ones", _filled(1.0), (), _MADE, source=True),
    Operator("_full", _filled(None), (), {**_MADE, "value": FLOAT}, source=True),
    Operator("_arange", _arange, (),
             {"start": FLOAT, "stop": MAYBE_FLOAT, "step": FLOAT.or_else(1.0),
              "repeat": INT.or_else(1), "dtype": DTYPE.or_else("float32"),
              "infer_range": BOOL.or_else(False)}, source=True),
)  # fmt: skip
