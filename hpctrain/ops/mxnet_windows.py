"""MXNet's convolutions and poolings as functions of tensors.

Images are channels first here, unless ``layout`` ends in C; the operations beneath work
channels last, so that a chain of such layers is a chain of cancelling transposes.
"""

import math
from collections.abc import Sequence
from typing import Any

from hpctrain.errors import ConfigError
from hpctrain.ops.conv import conv, conv_transpose
from hpctrain.ops.movement import transpose
from hpctrain.ops.mxnet_row import (
    BOOL,
    INT,
    MAYBE_BOOL,
    SHAPE,
    TEXT,
    Attrs,
    Operator,
    Shape,
    Shapes,
    first_shape,
    no_bias,
)
from hpctrain.ops.pool import avg_pool, max_pool
from hpctrain.ops.reduce import max, mean, sum
from hpctrain.ops.slicing import pad as pad_with

__all__ = ["WINDOWS"]


def _is_first(layout: str) -> bool:
    return not layout.endswith("C")


def _to_last(x: Any) -> Any:
    return transpose(x, (0, *range(2, x.ndim), 1))


def _to_first(x: Any) -> Any:
    return transpose(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))


def _each(values: Sequence[int], count: int, default: int) -> tuple[int, ...]:
    """Return a number for each spatial axis."""
    return tuple(values) or (default,) * count


def _convolution(data: Any, weight: Any, bias: Any = None, **attrs: Any) -> Any:
    n, first = len(attrs["kernel"]), _is_first(attrs["layout"])
    y = conv(
        _to_last(data) if first else data,
        _to_last(weight) if first else weight,
        bias,
        stride=_each(attrs["stride"], n, 1),
        padding=_each(attrs["pad"], n, 0),
        dilation=_each(attrs["dilate"], n, 1),
        groups=attrs["num_group"],
    )
    return _to_first(y) if first else y


def _conv_shapes(attrs: Attrs, shapes: Shapes) -> Shapes:
    data, kernel, filters = first_shape(shapes), attrs["kernel"], attrs["num_filter"]
    first = _is_first(attrs["layout"])
    channels = data[1 if first else -1] // attrs["num_group"]
    weight = (filters, channels, *kernel) if first else (filters, *kernel, channels)
    return [data, weight, (filters,)][: len(shapes)]


def _deconvolution(data: Any, weight: Any, bias: Any = None, **attrs: Any) -> Any:
    if attrs["target_shape"] or not _is_first(attrs["layout"]):
        raise ConfigError(
            "Deconvolution: got target_shape or a layout with C last, needed adj and NCHW"
        )
    n = len(attrs["kernel"])
    y = conv_transpose(
        _to_last(data),
        _to_last(weight),
        bias,
        stride=_each(attrs["stride"], n, 1),
        padding=_each(attrs["pad"], n, 0),
        dilation=_each(attrs["dilate"], n, 1),
        groups=attrs["num_group"],
        output_padding=_each(attrs["adj"], n, 0),
    )
    return _to_first(y)


def _deconv_shapes(attrs: Attrs, shapes: Shapes) -> Shapes:
    data, filters = first_shape(shapes), attrs["num_filter"]
    weight = (data[1], filters // attrs["num_group"], *attrs["kernel"])
    return [data, weight, (filters,)][: len(shapes)]


def _pooling(data: Any, **attrs: Any) -> Any:
    first = _is_first(attrs["layout"])
    x = _to_last(data) if first else data
    if attrs["pool_type"] not in ("max", "avg", "sum"):
        raise ConfigError(f"Pooling: got {attrs['pool_type']!r}, needed max, avg or sum")
    y = _pool_whole(x, attrs["pool_type"]) if attrs["global_pool"] else _pool(x, attrs)
    return _to_first(y) if first else y


def _pool_whole(x: Any, kind: str) -> Any:
    axes = tuple(range(1, x.ndim - 1))
    return {"max": max, "avg": mean, "sum": sum}[kind](x, axes, keepdims=True)


def _pool(x: Any, attrs: Attrs) -> Any:
    kernel, kind, space = attrs["kernel"], attrs["pool_type"], x.shape[1:-1]
    stride = _each(attrs["stride"], len(kernel), 1)
    pad = _each(attrs["pad"], len(kernel), 0)
    more = _overhang(space, kernel, stride, pad, attrs["pooling_convention"])
    pads = tuple((p, p + m) for p, m in zip(pad, more, strict=True))
    if kind == "max":
        return max_pool(x, kernel, stride, pads)[0]
    if kind == "sum":
        return avg_pool(x, kernel, stride, pads) * math.prod(kernel)
    if attrs["count_include_pad"] is False:
        return avg_pool(x, kernel, stride, pads, count_include_pad=False)
    # What hangs over the padded image at its end does not count, but the padding does.
    if any(more) and not attrs.get("overhang"):
        x = pad_with(x, [(0, 0), *((p, p) for p in pad), (0, 0)])
        return avg_pool(x, kernel, stride, tuple((0, m) for m in more), False)
    return avg_pool(x, kernel, stride, pads)


def _overhang(space: Shape, kernel: Shape, stride: Shape, pad: Shape, rule: str) -> list[int]:
    """Return how far the last window reaches beyond the padding: 0 but by the rule "full"."""
    if rule == "valid":
        return [0] * len(space)
    if rule != "full":
        raise ConfigError(f"Pooling: got convention {rule!r}, needed valid or full")
    axes = zip(space, kernel, stride, pad, strict=True)
    return [-(n + 2 * p - k) % s for n, k, s, p in axes]


_WINDOW = {
    "kernel": SHAPE, "stride": SHAPE.or_else(()), "pad": SHAPE.or_else(()),
    "layout": TEXT.or_else("None"),
}  # fmt: skip
_FILTERS = {
    **_WINDOW, "dilate": SHAPE.or_else(()), "num_filter": INT, "num_group": INT.or_else(1),
}  # fmt: skip
_POOL = {
    **_WINDOW, "kernel": SHAPE.or_else(()), "pool_type": TEXT.or_else("max"),
    "global_pool": BOOL.or_else(False), "pooling_convention": TEXT.or_else("valid"),
    "count_include_pad": MAYBE_BOOL, "p_value": TEXT.or_else("None"),
}  # fmt: skip

WINDOWS = (
    Operator(
        "Convolution", _convolution, ("data", "weight", "bias"),
        {**_FILTERS, "no_bias": BOOL.or_else(False)}, omit=no_bias, shapes=_conv_shapes,
    ),
    Operator(
        "Deconvolution", _deconvolution, ("data", "weight", "bias"),
        {**_FILTERS, "no_bias": BOOL.or_else(True), "adj": SHAPE.or_else(()),
         "target_shape": SHAPE.or_else(())},
        omit=no_bias, shapes=_deconv_shapes,
    ),
    Operator("Pooling", _pooling, attrs=_POOL),
    # The mean of this one counts what hangs over the padded image at its end, as zeros.
    Operator("Pooling_v1", lambda data, **attrs: _pooling(data, overhang=True, **attrs),
             attrs=_POOL),
)  # fmt: skip
