"""Pooling: the maximum or the mean of each window, in one, two or three dimensions.

Both are separable: windows are reduced along W, then H, then D, some images at a
time. Along W first, so that among equal elements the first in memory order wins, as in
other frameworks.

Dimension key: as in `hpctrain.ops.windows`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, as_tensor, register
from hpctrain.errors import ShapeError
from hpctrain.ops.dnnl_pool import (
    all_finite,
    avg_grad_program,
    avg_program,
    max_grad_program,
    max_program,
)
from hpctrain.ops.dnnl_row import TwoKernels
from hpctrain.ops.slide import (
    fill_shares,
    group_results,
    group_specs,
    groups,
    index_dtype,
    maximum_windows,
    spread,
    spread_specs,
    sum_windows,
    tap_slices,
)
from hpctrain.ops.windows import Window, as_volume, pad_images, pairs, tuples

__all__ = ["avg_pool", "global_mean", "max_pool"]


def max_pool(x: Any, kernel: Any, stride: Any = None, padding: Any = 0) -> tuple[Any, Any]:
    """Return the largest element of each window, and where it was.

    Parameters
    ----------
    x : Tensor, shape (N, *space, C), one to three axes of space
    kernel : int or one for each axis
    stride : int or one for each axis, optional
        ``kernel`` if None.
    padding : int, one or a pair (before, after) for each axis
        Padding never wins.

    Returns
    -------
    y : Tensor, shape (N, *out, C)
    index : Tensor, same shape, uint8 (int32 for windows of more than 256 elements)
        Place of the maximum inside its window, in memory order; the first of equal ones.
    """
    x = as_tensor(x)
    return apply("max_pool", x, **_attrs("max_pool", x, kernel, stride, padding))


def avg_pool(
    x: Any, kernel: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True
) -> Any:
    """Return the mean of each window.

    Parameters
    ----------
    x : Tensor, shape (N, *space, C), one to three axes of space
    kernel, stride, padding
        As for `max_pool`.
    count_include_pad : bool
        Whether padding counts as zeros, or does not count.

    Returns
    -------
    Tensor, shape (N, *out, C)
    """
    x = as_tensor(x)
    attrs = _attrs("avg_pool", x, kernel, stride, padding)
    return apply("avg_pool", x, **attrs, include=bool(count_include_pad))


def global_mean(x: Any) -> Any:
    """Return the mean over space: (N, *space, C) to (N, C)."""
    x = as_tensor(x)
    return apply("mean", x, axis=tuple(range(1, x.ndim - 1)), keepdims=False)


def _attrs(where: str, x: Any, kernel: Any, stride: Any, padding: Any) -> dict[str, Any]:
    n = x.ndim - 2
    sizes = tuples(kernel, n, f"{where}: kernel")
    pads = pairs(padding, n, f"{where}: padding")
    for k, (before, after) in zip(sizes, pads, strict=True):
        if not (0 <= before < k and 0 <= after < k):
            raise ShapeError(
                f"{where}: got padding {pads} for a kernel of {sizes}, needed less than the "
                "kernel, so that no window is all padding"
            )
    steps = sizes if stride is None else tuples(stride, n, f"{where}: stride")
    return {"kernel": sizes, "stride": steps, "padding": pads}


def _window(x: Spec, attrs: dict[str, Any]) -> Window:
    if not 3 <= x.ndim <= 5 or x.dtype.kind != "f":
        raise ShapeError(f"pool: got {x}, needed floats (N, *space, C), 1 to 3 axes of space")
    return Window.make(x.shape[1:-1], attrs["kernel"], attrs["stride"], attrs["padding"])


def _under(y: Spec, size: Any) -> Spec:
    """Return the spec of the input of ``size`` that ``y`` came from."""
    return y.with_shape((y.shape[0], *size, y.shape[-1]))


def _infer(specs: Sequence[Spec], **attrs: Any) -> list[Spec]:
    (x,) = specs
    window = _window(x, attrs)
    return [x.with_shape((x.shape[0], *window.out[5 - x.ndim :], x.shape[-1]))]


def _max_infer(specs: Sequence[Spec], **attrs: Any) -> list[Spec]:
    (y,) = _infer(specs, **attrs)
    return [y, Spec(y.shape, index_dtype(_window(specs[0], attrs)))]


def _avg_infer(specs: Sequence[Spec], *, include: bool, **attrs: Any) -> list[Spec]:
    return _infer(specs, **attrs)


def _max_scratch(specs: Sequence[Spec], **attrs: Any) -> list[Spec]:
    (x,) = specs
    window = _window(x, attrs)
    padded, half = group_specs(x, window)
    index = Spec(half.shape, index_dtype(window))
    return [padded, half, half, index, index, index, Spec(half.shape, np.dtype(bool))]


def _max_kernel(xp: Any, ins: Any, outs: Any, scratch: Any, **attrs: Any) -> None:
    x, (y, index) = as_volume(ins[0]), map(as_volume, outs)
    window = _window(Spec.of(ins[0]), attrs)
    padded, *rest = scratch
    padded[...] = -np.inf
    for some in groups(x, window):
        source = pad_images(x[some], window, padded) if window.pads else x[some]
        maximum_windows(xp, source, (y[some], index[some]), window, rest)


def _max_vjp(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> list[Any]:
    dy, index = cotangents[0], outputs[1]
    if dy is None:
        return [None]
    return [apply("max_pool_grad", dy, index, size=inputs[0].shape[1:-1], **attrs)]


def _avg_scratch(specs: Sequence[Spec], *, include: bool, **attrs: Any) -> list[Spec]:
    window = _window(specs[0], attrs)
    padded, half = group_specs(specs[0], window)
    return [padded, half, half, Spec(window.out, specs[0].dtype)]


def _avg_kernel(
    xp: Any, ins: Any, outs: Any, scratch: Any, *, include: bool, **attrs: Any
) -> None:
    x, y = as_volume(ins[0]), as_volume(outs[0])
    window = _window(Spec.of(ins[0]), attrs)
    padded, first, second, share = scratch
    padded[...] = 0
    fill_shares(xp, share, window, include)
    for some in groups(x, window):
        source = pad_images(x[some], window, padded) if window.pads else x[some]
        sum_windows(xp, source, y[some], window, (first, second))
        xp.multiply(y[some], share[..., None], out=y[some])


def _avg_vjp(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> list[Any]:
    return [apply("avg_pool_grad", cotangents[0], size=inputs[0].shape[1:-1], **attrs)]


def _grad_infer(specs: Sequence[Spec], *, size: Any, **attrs: Any) -> list[Spec]:
    x = _under(specs[0], size)
    expected = _infer([x], **{k: attrs[k] for k in ("kernel", "stride", "padding")})[0]
    if expected != specs[0]:
        raise ShapeError(f"pool gradient: got a cotangent {specs[0]}, needed {expected}")
    return [x]


def _max_grad_scratch(specs: Sequence[Spec], *, size: Any, **attrs: Any) -> list[Spec]:
    x = _under(specs[0], size)
    window = _window(x, attrs)
    term = group_results(x, window)
    return [*spread_specs(x, window), term, Spec(term.shape, np.dtype(bool))]


def _max_grad_kernel(
    xp: Any, ins: Any, outs: Any, scratch: Any, *, size: Any, **attrs: Any
) -> None:
    dy, index, dx = as_volume(ins[0]), as_volume(ins[1]), as_volume(outs[0])
    window = _window(Spec.of(outs[0]), attrs)
    padded, term, mask = scratch

    def part(some: slice, tap: int, out: Any) -> Any:
        here = mask[: dy[some].size].reshape(dy[some].shape)
        xp.equal(index[some], tap, out=here)
        return xp.multiply(dy[some], here, out=out)

    spread(xp, part, dx, window, (padded, term))


def _max_grad_vjp(
    inputs: Any, outputs: Any, cotangents: Any, *, size: Any, **attrs: Any
) -> list[Any]:
    return [lambda: apply("max_pool_take", cotangents[0], inputs[1], **attrs), None]


def _take_infer(specs: Sequence[Spec], **attrs: Any) -> list[Spec]:
    return _infer(specs[:1], **attrs)


def _take_scratch(specs: Sequence[Spec], **attrs: Any) -> list[Spec]:
    x = specs[0]
    window = _window(x, attrs)
    term = group_results(x, window)
    return [group_specs(x, window)[0], term, Spec(term.shape, np.dtype(bool))]


def _take_kernel(xp: Any, ins: Any, outs: Any, scratch: Any, **attrs: Any) -> None:
    x, index, y = as_volume(ins[0]), as_volume(ins[1]), as_volume(outs[0])
    window = _window(Spec.of(ins[0]), attrs)
    padded, term, mask = scratch
    padded[...] = 0
    y[...] = 0
    for some in groups(x, window):
        source = pad_images(x[some], window, padded) if window.pads else x[some]
        shape, size = y[some].shape, y[some].size
        for tap, place in enumerate(tap_slices(window)):
            here, value = mask[:size].reshape(shape), term[:size].reshape(shape)
            xp.equal(index[some], tap, out=here)
            xp.multiply(source[place], here, out=value)
            xp.add(y[some], value, out=y[some])


def _take_vjp(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> list[Any]:
    x, index = inputs
    return [apply("max_pool_grad", cotangents[0], index, size=x.shape[1:-1], **attrs), None]


def _avg_grad_scratch(specs: Sequence[Spec], *, size: Any, **attrs: Any) -> list[Spec]:
    x = _under(specs[0], size)
    window = _window(x, attrs)
    term = group_results(x, window)
    return [*spread_specs(x, window), term, Spec(window.out, x.dtype)]


def _avg_grad_kernel(
    xp: Any, ins: Any, outs: Any, scratch: Any, *, size: Any, include: bool, **attrs: Any
) -> None:
    dy, dx = as_volume(ins[0]), as_volume(outs[0])
    window = _window(Spec.of(outs[0]), attrs)
    padded, term, share = scratch
    fill_shares(xp, share, window, include)

    def part(some: slice, tap: int, out: Any) -> Any:
        return xp.multiply(dy[some], share[..., None], out=out)

    spread(xp, part, dx, window, (padded, term))


def _avg_grad_vjp(
    inputs: Any, outputs: Any, cotangents: Any, *, size: Any, **attrs: Any
) -> list[Any]:
    return [apply("avg_pool", cotangents[0], **attrs)]


_MAX = TwoKernels(_max_infer, max_program, _max_kernel, _max_scratch, all_finite)
_MAX_GRAD = TwoKernels(_grad_infer, max_grad_program, _max_grad_kernel, _max_grad_scratch)
_AVG = TwoKernels(_avg_infer, avg_program, _avg_kernel, _avg_scratch)
_AVG_GRAD = TwoKernels(_grad_infer, avg_grad_program, _avg_grad_kernel, _avg_grad_scratch)

register(Primitive("max_pool", "window", _max_infer, _MAX.kernel, _max_vjp,
                   any_strides=True, **_MAX.columns))  # fmt: skip
register(Primitive("max_pool_grad", "window", _grad_infer, _MAX_GRAD.kernel, _max_grad_vjp,
                   any_strides=True, **_MAX_GRAD.columns))  # fmt: skip
register(Primitive("max_pool_take", "window", _take_infer, _take_kernel, _take_vjp,
                   scratch=_take_scratch, any_strides=True))  # fmt: skip
register(Primitive("avg_pool", "window", _avg_infer, _AVG.kernel, _avg_vjp,
                   any_strides=True, **_AVG.columns))  # fmt: skip
register(Primitive("avg_pool_grad", "window", _grad_infer, _AVG_GRAD.kernel, _avg_grad_vjp,
                   any_strides=True, **_AVG_GRAD.columns))  # fmt: skip
