"""The same elements in another shape or order: views where the strides allow it."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.backend import module_of
from hpctrain.ops.dnnl_transpose import transposition
from hpctrain.ops.rules import axes_of, axis_of, broadcast_shapes, need, same_spec, tensors

__all__ = [
    "broadcast_to", "expand_dims", "flatten", "flip", "repeat", "reshape", "squeeze", "tile",
    "transpose",
]  # fmt: skip

Shape = tuple[int, ...]


def _ints(values: Any) -> Shape:
    return (int(values),) if isinstance(values, int | np.integer) else tuple(map(int, values))


def _moved(view: Any) -> Any:
    """Make a kernel that copies what ``view`` shows."""

    def kernel(xp: Any, ins: Any, outs: Any, scratch: Any, **attrs: Any) -> None:
        outs[0][...] = view(ins[0], **attrs)

    return kernel


# Reshape


def _filled(spec: Spec, shape: Shape) -> Shape:
    """Put the length that is missing in place of -1."""
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known and spec.size % known == 0:
        shape = tuple(spec.size // known if n == -1 else n for n in shape)
    fits = math.prod(shape) == spec.size and all(n >= 0 for n in shape)
    need(fits, "reshape", [spec], f"as many elements as in {shape}")
    return shape


def _reshape_view(x: Any, shape: Shape) -> Any:
    if isinstance(x, np.ndarray):
        try:
            return np.reshape(x, shape, copy=False)
        except ValueError:
            return None
    seen = x.reshape(shape)  # CuPy copies only where it must, like NumPy, and does not tell
    return seen if seen.data.ptr == x.data.ptr else None


register(
    Primitive(
        "reshape", "movement",
        lambda specs, shape: [specs[0].with_shape(_filled(specs[0], shape))],
        _moved(lambda x, shape: x.reshape(shape)),
        lambda i, o, g, shape: [apply("reshape", g[0], shape=i[0].shape)], _reshape_view,
    )
)  # fmt: skip


def reshape(x: Any, shape: int | Sequence[int]) -> Any:
    """Return the elements in C order in another shape.

    Parameters
    ----------
    x : array_like
    shape : int or sequence of int
        One length may be -1: what is left.

    Notes
    -----
    Shares memory with ``x`` where its strides allow it.
    """
    (x,) = tensors(x)
    return apply("reshape", x, shape=_filled(x.spec, _ints(shape)))


def flatten(x: Any) -> Any:
    """Return ``x`` with all axes but the first made one."""
    (x,) = tensors(x)
    return apply("reshape", x, shape=(x.shape[0], math.prod(x.shape[1:])))


def expand_dims(x: Any, axis: int) -> Any:
    """Return ``x`` with a new axis of length 1 at ``axis`` of the result."""
    (x,) = tensors(x)
    axis = axis_of("expand_dims", axis, x.ndim + 1)
    return apply("reshape", x, shape=(*x.shape[:axis], 1, *x.shape[axis:]))


def squeeze(x: Any, axis: int | Sequence[int] | None = None) -> Any:
    """Return ``x`` without the axes given, all of length 1; without every such axis if None."""
    (x,) = tensors(x)
    given = [i for i, n in enumerate(x.shape) if n == 1] if axis is None else _ints(axis)
    axes = {axis_of("squeeze", a, x.ndim) for a in given}
    need(all(x.shape[a] == 1 for a in axes), "squeeze", [x.spec], f"length 1 of axes {axes}")
    return apply("reshape", x, shape=tuple(n for i, n in enumerate(x.shape) if i not in axes))


# Transpose, broadcast, flip


def _transpose_infer(specs: Sequence[Spec], axes: Shape) -> list[Spec]:
    x = specs[0]
    fits = sorted(axes) == list(range(x.ndim))
    need(fits, "transpose", specs, f"each axis once, not {axes}")
    return [x.with_shape([x.shape[a] for a in axes])]


def _transpose_vjp(inputs: Any, outputs: Any, given: Any, axes: Shape) -> list[Any]:
    back = tuple(sorted(range(len(axes)), key=axes.__getitem__))
    return [apply("transpose", given[0], axes=back)]


_NOTHING = np.empty(0, np.uint8)  # scratch of a transpose


def _transpose(xp: Any, ins: Any, outs: Any, scratch: Any, axes: Shape) -> None:
    x = ins[0]
    turned = _turned(xp, x, axes)
    if turned is None:
        outs[0][...] = x.transpose(axes)
    else:
        turned.run([x, outs[0]], _NOTHING)


def _transpose_bind(
    xp: Any, ins: Any, outs: Any, scratch: Any, axes: Shape
) -> Callable[[], None] | None:
    turned = _turned(xp, ins[0], axes)
    return None if turned is None else turned.ready([ins[0], outs[0]], _NOTHING)


def _turned(xp: Any, x: Any, axes: Shape) -> Any:
    """Return oneDNN's program if it takes such an array."""
    plain = xp is np and x.flags.c_contiguous and x.flags.aligned
    return transposition(Spec.of(x), axes) if plain else None


register(
    Primitive(
        "transpose", "movement", _transpose_infer, _transpose, _transpose_vjp,
        lambda x, axes: x.transpose(axes), bind=_transpose_bind,
    )
)  # fmt: skip


def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Return a view with the axes in the order ``axes``, reversed if None."""
    (x,) = tensors(x)
    order = range(x.ndim)[::-1] if axes is None else axes
    return apply("transpose", x, axes=tuple(axis_of("transpose", a, x.ndim) for a in order))


def _broadcast_infer(specs: Sequence[Spec], shape: Shape) -> list[Spec]:
    target = specs[0].with_shape(shape)
    fits = broadcast_shapes("broadcast_to", [specs[0], target]) == target.shape
    need(fits, "broadcast_to", specs, f"a shape that broadcasts to {target.shape}")
    return [target]


def _broadcast_view(x: Any, shape: Shape) -> Any:
    return module_of(x).broadcast_to(x, shape)


def _broadcast(xp: Any, ins: Any, outs: Any, scratch: Any, shape: Shape) -> None:
    outs[0][...] = ins[0]


register(
    Primitive(
        "broadcast_to", "movement", _broadcast_infer, _broadcast,
        lambda i, o, g, shape: [apply("sum_to", g[0], shape=i[0].shape)], _broadcast_view,
    )
)  # fmt: skip


def _flip(x: Any, axis: Shape) -> Any:
    return x[tuple(slice(None, None, -1 if i in axis else 1) for i in range(x.ndim))]


register(
    Primitive(
        "flip", "movement", same_spec, _moved(_flip),
        lambda i, o, g, axis: [apply("flip", g[0], axis=axis)], _flip,
    )
)  # fmt: skip


def broadcast_to(x: Any, shape: Sequence[int]) -> Any:
    """Return ``x`` repeated along axes of length 1 and new axes in front, as a view."""
    (x,) = tensors(x)
    return apply("broadcast_to", x, shape=_ints(shape))


def flip(x: Any, axis: int | Sequence[int]) -> Any:
    """Return a view with the order of the elements along ``axis`` reversed."""
    (x,) = tensors(x)
    return apply("flip", x, axis=axes_of("flip", axis, x.ndim))


def repeat(x: Any, repeats: int, axis: int) -> Any:
    """Return each element ``repeats`` times in a row along ``axis``."""
    (x,) = tensors(x)
    axis = axis_of("repeat", axis, x.ndim)
    wide = (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :])
    thick = broadcast_to(expand_dims(x, axis + 1), wide)
    return reshape(thick, (*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :]))


def tile(x: Any, repeats: Sequence[int]) -> Any:
    """Return the whole of ``x`` repeated ``repeats[i]`` times along axis ``i``."""
    (x,) = tensors(x)
    need(len(repeats) == x.ndim, "tile", [x.spec], f"one repeat for each axis, not {repeats}")
    thin = reshape(x, [n for length in x.shape for n in (1, length)])
    pairs = list(zip(repeats, x.shape, strict=True))
    thick = broadcast_to(thin, [n for pair in pairs for n in pair])
    return reshape(thick, [count * length for count, length in pairs])
