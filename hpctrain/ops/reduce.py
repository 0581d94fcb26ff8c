"""Reductions over axes: sum, mean, maximum, minimum, argmax, logsumexp, and sum_to.

The attribute ``axis`` of a row is a sorted tuple of axes counted from the front.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.ops.blocks import WIDE, row_spec, sum_rows
from hpctrain.ops.rules import axes_of, axis_of, differentiable, need, tensors

__all__ = ["argmax", "max", "mean", "min", "sum", "sum_to"]

Axes = tuple[int, ...]


def _reduced(shape: Sequence[int], axis: Axes, keepdims: bool) -> Axes:
    if keepdims:
        return tuple(1 if i in axis else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axis)


def spread(g: Any, shape: Axes, axis: Axes) -> Any:
    """Broadcast a reduced tensor back over the axes that were reduced."""
    kept = _reduced(shape, axis, True)
    if g.shape != kept:
        g = apply("reshape", g, shape=kept)
    return apply("broadcast_to", g, shape=tuple(shape))


# Sum and mean


def _sum_infer(name: str) -> Callable[..., Sequence[Spec]]:
    def infer(specs: Sequence[Spec], axis: Axes, keepdims: bool = False) -> list[Spec]:
        x = specs[0]
        dtype = x.dtype
        if dtype.kind != "f":
            dtype = np.dtype(np.int64 if name == "sum" else np.float32)
        return [Spec(_reduced(x.shape, axis, keepdims), dtype)]

    return infer


def _lead(axis: Axes, ndim: int) -> int | None:
    """Return the number of axes kept in front, if the only other one kept is the last.

    Sums of this kind are the gradients of biases, means over an image, and norms.
    """
    whole = len(axis) > 0 and axis == tuple(range(axis[0], ndim - 1))
    return axis[0] if whole else None


def _sum_scratch(specs: Sequence[Spec], axis: Axes, keepdims: bool = False) -> list[Spec]:
    x = specs[0]
    return [] if _lead(axis, x.ndim) is None else [row_spec(x, x.shape[-1])]


def add_up(xp: Any, x: Any, out: Any, axis: Axes, scratch: Sequence[Any]) -> None:
    """Sum ``x`` over ``axis`` into ``out``, folded where that is faster."""
    lead = _lead(axis, x.ndim) if scratch and xp is np and x.flags.c_contiguous else None
    if lead is None or x.dtype != out.dtype or not x.size:
        xp.add.reduce(x, axis=axis, dtype=out.dtype, out=out, keepdims=out.ndim == x.ndim)
        return
    width, count = x.shape[-1], math.prod(x.shape[:lead])
    if x.size // count <= 4 * WIDE:
        xp.add.reduce(x.reshape(count, -1, width), axis=1, out=out.reshape(count, width))
        return
    for part, total in zip(x.reshape(count, -1), out.reshape(count, width), strict=True):
        sum_rows(xp, part, total, scratch[0])


def _sum(
    xp: Any, ins: Any, outs: Any, scratch: Any, axis: Axes, keepdims: bool = False
) -> None:
    add_up(xp, ins[0], outs[0], axis, scratch)


def _mean(
    xp: Any, ins: Any, outs: Any, scratch: Any, axis: Axes, keepdims: bool = False
) -> None:
    add_up(xp, ins[0], outs[0], axis, scratch)
    xp.divide(outs[0], math.prod(ins[0].shape[i] for i in axis), out=outs[0])


def _sum_vjp(inputs: Any, outputs: Any, given: Any, axis: Axes, keepdims: bool = False) -> Any:
    x = inputs[0]
    return [spread(given[0], x.shape, axis) if differentiable(x) else None]


def _mean_vjp(inputs: Any, outputs: Any, given: Any, axis: Axes, keepdims: bool = False) -> Any:
    x = inputs[0]
    count = math.prod(x.shape[i] for i in axis)
    return [spread(given[0] * (1 / count), x.shape, axis) if differentiable(x) else None]


def _mean_total(x: Spec, axis: Axes, keepdims: bool = False) -> tuple[Axes, float]:
    return axis, 1 / (math.prod(x.shape[i] for i in axis) or 1)


register(
    Primitive(
        "sum", "reduce", _sum_infer("sum"), _sum, _sum_vjp,
        scratch=_sum_scratch, total=lambda x, axis, keepdims=False: (axis, 1.0),
    )
)  # fmt: skip
register(
    Primitive(
        "mean", "reduce", _sum_infer("mean"), _mean, _mean_vjp,
        scratch=_sum_scratch, total=_mean_total,
    )
)  # fmt: skip


def _extended(axis: Any, keepdims: bool, x: Any, name: str) -> dict[str, Any]:
    return {"axis": axes_of(name, axis, x.ndim), "keepdims": bool(keepdims)}


def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the sum over ``axis``.

    Parameters
    ----------
    x : array_like
    axis : int, sequence of int or None
        Axes to sum over; all of them if None.
    keepdims : bool
        Leave the axes in place with length 1.

    Returns
    -------
    Tensor
        In the dtype of ``x`` if it is floating, else int64.
    """
    (x,) = tensors(x)
    return apply("sum", x, **_extended(axis, keepdims, x, "sum"))


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the mean over ``axis``, float32 for whole numbers; see `sum`."""
    (x,) = tensors(x)
    return apply("mean", x, **_extended(axis, keepdims, x, "mean"))


# Sum to a shape


def _summed_axes(x: Sequence[int], shape: Sequence[int]) -> Axes:
    lead = len(x) - len(shape)
    return tuple(i for i, n in enumerate(x) if i < lead or (shape[i - lead] == 1 and n != 1))


def _sum_to_infer(specs: Sequence[Spec], shape: Axes) -> list[Spec]:
    x, lead = specs[0], specs[0].ndim - len(shape)
    fits = lead >= 0 and all(n in (1, m) for n, m in zip(shape, x.shape[lead:], strict=True))
    need(fits, "sum_to", specs, f"a shape that {tuple(shape)} broadcasts to")
    return [x.with_shape(shape)]


def _sum_to(xp: Any, ins: Any, outs: Any, scratch: Any, shape: Axes) -> None:
    x, axis = ins[0], _summed_axes(ins[0].shape, shape)
    add_up(xp, x, outs[0].reshape(_reduced(x.shape, axis, False)), axis, scratch)


def _sum_to_scratch(specs: Sequence[Spec], shape: Axes) -> list[Spec]:
    return _sum_scratch(specs, _summed_axes(specs[0].shape, shape))


def _sum_to_vjp(inputs: Any, outputs: Any, given: Any, shape: Axes) -> list[Any]:
    return [apply("broadcast_to", given[0], shape=inputs[0].shape)]


register(
    Primitive(
        "sum_to", "reduce", _sum_to_infer, _sum_to, _sum_to_vjp, scratch=_sum_to_scratch,
        total=lambda x, shape: (_summed_axes(x.shape, shape), 1.0),
    )
)  # fmt: skip


def sum_to(x: Any, shape: Sequence[int]) -> Any:
    """Sum over the axes along which ``shape`` would be broadcast to the shape of ``x``.

    Returns
    -------
    Tensor of ``shape``
    """
    (x,) = tensors(x)
    return apply("sum_to", x, shape=tuple(int(n) for n in shape))


# Maximum and minimum


def _best_infer(name: str) -> Callable[..., Sequence[Spec]]:
    def infer(specs: Sequence[Spec], axis: Axes, keepdims: bool = False) -> list[Spec]:
        x = specs[0]
        need(all(x.shape[i] for i in axis), name, specs, "at least one element to choose from")
        return [x.with_shape(_reduced(x.shape, axis, keepdims))]

    return infer


def _best(name: str) -> Callable[..., None]:
    def kernel(
        xp: Any, ins: Any, outs: Any, scratch: Any, axis: Axes, keepdims: bool = False
    ) -> None:
        getattr(xp, name)(ins[0], axis=axis, out=outs[0], keepdims=keepdims)

    return kernel


def _best_vjp(inputs: Any, outputs: Any, given: Any, axis: Axes, keepdims: bool = False) -> Any:
    """Share the cotangent evenly among equal extremes."""
    x, y, g = inputs[0], outputs[0], given[0]
    if not differentiable(x):
        return [None]
    hit = apply("cast", apply("equal", x, spread(y, x.shape, axis)), dtype=x.dtype.name)
    ties = apply("sum", hit, axis=axis, keepdims=keepdims)
    return [hit * spread(g / ties, x.shape, axis)]


for _name in ("max", "min"):
    register(Primitive(_name, "reduce", _best_infer(_name), _best(_name), _best_vjp))


def max(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the maximum over ``axis``; equal maxima share the gradient; see `sum`."""
    (x,) = tensors(x)
    return apply("max", x, **_extended(axis, keepdims, x, "max"))


def min(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the minimum over ``axis``; equal minima share the gradient; see `sum`."""
    (x,) = tensors(x)
    return apply("min", x, **_extended(axis, keepdims, x, "min"))


def _argmax_infer(specs: Sequence[Spec], axis: int) -> list[Spec]:
    x = specs[0]
    need(x.shape[axis] > 0, "argmax", specs, "at least one element to choose from")
    return [Spec(_reduced(x.shape, (axis,), False), np.dtype(np.int64))]


def _argmax(xp: Any, ins: Any, outs: Any, scratch: Any, axis: int) -> None:
    xp.argmax(ins[0], axis=axis, out=outs[0])


register(Primitive("argmax", "reduce", _argmax_infer, _argmax))


def argmax(x: Any, axis: int = -1) -> Any:
    """Return where the maximum stands along ``axis``, the first of equal ones; int64."""
    (x,) = tensors(x)
    return apply("argmax", x, axis=axis_of("argmax", axis, x.ndim))
