"""Parts of a tensor and their opposite: slice, pad, concat, stack, unstack and split.

The attribute ``key`` of a row holds for each axis a whole number, which drops the axis, or
(start, stop, step) with a step of 1 or more.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.errors import ShapeError
from hpctrain.ops.rules import axis_of, need, tensors

__all__ = ["concat", "pad", "slice", "split", "stack", "unstack"]

Shape = tuple[int, ...]
Key = tuple[Any, ...]
builtin_slice = slice


def _index(key: Key) -> tuple[Any, ...]:
    return tuple(k if isinstance(k, int) else builtin_slice(*k) for k in key)


def _slice_infer(specs: Sequence[Spec], key: Key) -> list[Spec]:
    x = specs[0]
    need(len(key) == x.ndim, "slice", specs, f"one index for each axis, not {key}")
    whole = [k for k in key if not isinstance(k, int)]
    return [x.with_shape([len(range(*k)) for k in whole])]


def _slice(xp: Any, ins: Any, outs: Any, scratch: Any, key: Key) -> None:
    outs[0][...] = ins[0][_index(key)]


def _slice_view(x: Any, key: Key) -> Any:
    return x[(*_index(key), ...)]


def _slice_grad_infer(specs: Sequence[Spec], key: Key, shape: Shape) -> list[Spec]:
    return [specs[0].with_shape(shape)]


def _slice_grad(xp: Any, ins: Any, outs: Any, scratch: Any, key: Key, shape: Shape) -> None:
    outs[0][...] = 0
    outs[0][_index(key)] = ins[0]


def _slice_vjp(inputs: Any, outputs: Any, given: Any, key: Key) -> list[Any]:
    return [apply("slice_grad", given[0], key=key, shape=inputs[0].shape)]


register(Primitive("slice", "movement", _slice_infer, _slice, _slice_vjp, _slice_view))
register(
    Primitive(
        "slice_grad", "movement", _slice_grad_infer, _slice_grad,
        lambda i, o, g, key, shape: [apply("slice", g[0], key=key)],
    )
)  # fmt: skip


def slice(x: Any, key: Any) -> Any:
    """Return ``x[key]`` for a basic index (numbers, slices, an ellipsis), as a view."""
    return tensors(x)[0][key]


def split(x: Any, parts: int | Sequence[int], axis: int = 0) -> tuple[Any, ...]:
    """Cut ``x`` along ``axis`` into views.

    Parameters
    ----------
    x : array_like
    parts : int or sequence of int
        How many equal parts, or the length of each.

    Returns
    -------
    tuple of Tensor

    Raises
    ------
    ShapeError
        If the parts do not add up to the length of the axis.
    """
    (x,) = tensors(x)
    axis = axis_of("split", axis, x.ndim)
    n = x.shape[axis]
    lengths = [n // parts] * parts if isinstance(parts, int) else list(parts)
    need(sum(lengths) == n, "split", [x.spec], f"parts that add up to {n}, not {parts}")
    stops = np.cumsum([0, *lengths]).tolist()
    whole = (builtin_slice(None),) * axis
    return tuple(x[(*whole, builtin_slice(a, b))] for a, b in pairwise(stops))


# Concat and stack


def _concat_infer(specs: Sequence[Spec], axis: int) -> list[Spec]:
    first = specs[0]

    def rest(spec: Spec) -> Shape:
        return spec.shape[:axis] + spec.shape[axis + 1 :]

    fits = all(s.ndim == first.ndim and rest(s) == rest(first) for s in specs)
    need(fits, "concat", specs, f"equal lengths of all axes but {axis}")
    length = sum(s.shape[axis] for s in specs)
    dtype = np.result_type(*(s.dtype for s in specs))
    return [Spec((*first.shape[:axis], length, *first.shape[axis + 1 :]), dtype)]


def _places(tensors: Sequence[Any], axis: int) -> list[tuple[Any, ...]]:
    """Return where each tensor lies in the whole, as an index."""
    stops = np.cumsum([0, *(t.shape[axis] for t in tensors)]).tolist()
    whole = (builtin_slice(None),) * axis
    return [(*whole, builtin_slice(a, b)) for a, b in pairwise(stops)]


def _concat(xp: Any, ins: Any, outs: Any, scratch: Any, axis: int) -> None:
    for x, place in zip(ins, _places(ins, axis), strict=True):
        outs[0][place] = x


def _concat_vjp(inputs: Any, outputs: Any, given: Any, axis: int) -> list[Any]:
    def part(x: Any, place: Any) -> Any:
        piece = given[0][place]
        return piece if piece.dtype == x.dtype else piece.astype(x.dtype)

    places = _places(inputs, axis)
    return [
        (lambda x=x, place=place: part(x, place))
        for x, place in zip(inputs, places, strict=True)
    ]


register(Primitive("concat", "movement", _concat_infer, _concat, _concat_vjp))


def concat(tensors_: Sequence[Any], axis: int = 0) -> Any:
    """Join tensors along an axis that they have.

    Parameters
    ----------
    tensors_ : sequence of array_like
        Of equal shapes but for ``axis``.
    axis : int

    Returns
    -------
    Tensor
    """
    if not tensors_:
        raise ShapeError("concat: got no tensors, needed at least one")
    given = tensors(*tensors_)
    return apply("concat", *given, axis=axis_of("concat", axis, given[0].ndim))


def stack(tensors_: Sequence[Any], axis: int = 0) -> Any:
    """Join tensors of one shape along a new axis at ``axis`` of the result."""
    given = tensors(*tensors_)
    axis = axis_of("stack", axis, given[0].ndim + 1)
    return concat([t.reshape(*t.shape[:axis], 1, *t.shape[axis:]) for t in given], axis)


# Unstack


def _unstack_infer(specs: Sequence[Spec]) -> list[Spec]:
    x = specs[0]
    need(x.ndim > 0 and x.shape[0] > 0, "unstack", specs, "a first axis of length 1 or more")
    return [x.with_shape(x.shape[1:])] * x.shape[0]


def _unstack(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    for part, out in zip(ins[0], outs, strict=True):
        out[...] = part


def _unstack_vjp(inputs: Any, outputs: Any, given: Any) -> list[Any]:
    pairs = zip(given, outputs, strict=True)
    return [lambda: stack([apply("zeros_like", o) if g is None else g for g, o in pairs])]


register(Primitive("unstack", "movement", _unstack_infer, _unstack, _unstack_vjp))


def unstack(x: Any) -> tuple[Any, ...]:
    """Return the parts along the first axis, without that axis.

    One operation, with one gradient for all parts: that of slicing each of T parts would cost
    T times as much.
    """
    (x,) = tensors(x)
    parts = apply("unstack", x)
    return parts if isinstance(parts, tuple) else (parts,)


# Pad

Widths = tuple[tuple[int, int], ...]


def _pad_infer(specs: Sequence[Spec], widths: Widths, value: float = 0) -> list[Spec]:
    x = specs[0]
    fits = len(widths) == x.ndim and all(w >= 0 for pair in widths for w in pair)
    need(fits, "pad", specs, f"two widths of 0 or more for each axis, not {widths}")
    return [x.with_shape([a + n + b for n, (a, b) in zip(x.shape, widths, strict=True)])]


def _inside(shape: Shape, widths: Widths) -> Key:
    return tuple((a, a + n, 1) for n, (a, _) in zip(shape, widths, strict=True))


def _pad(xp: Any, ins: Any, outs: Any, scratch: Any, widths: Widths, value: float = 0) -> None:
    outs[0][...] = value
    outs[0][_index(_inside(ins[0].shape, widths))] = ins[0]


def _pad_vjp(
    inputs: Any, outputs: Any, given: Any, widths: Widths, value: float = 0
) -> list[Any]:
    return [apply("slice", given[0], key=_inside(inputs[0].shape, widths))]


register(Primitive("pad", "movement", _pad_infer, _pad, _pad_vjp))


def pad(x: Any, widths: Sequence[tuple[int, int]], value: float = 0) -> Any:
    """Return ``x`` with ``value`` around it.

    Parameters
    ----------
    x : array_like
    widths : sequence of (int, int)
        How many to put before and after, for each axis.
    value : float
    """
    (x,) = tensors(x)
    pairs = tuple((int(a), int(b)) for a, b in widths)
    return apply("pad", x, widths=pairs, value=value)
