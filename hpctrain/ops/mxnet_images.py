"""MXNet's normalisations and movements of images as functions of tensors, channels first."""

from typing import Any

from hpctrain.errors import ConfigError, ShapeError
from hpctrain.ops.elementwise import power
from hpctrain.ops.movement import repeat, reshape
from hpctrain.ops.mxnet_row import (
    BOOL,
    FLOAT,
    INT,
    SHAPE,
    TEXT,
    Attrs,
    Operator,
    Shapes,
    first_shape,
)
from hpctrain.ops.reduce import mean, sum
from hpctrain.ops.slicing import concat, pad
from hpctrain.ops.softmax import softmax
from hpctrain.ops.unary import rsqrt, square

__all__ = ["IMAGES"]


def _lrn(data: Any, *, nsize: int, alpha: float, beta: float, knorm: float) -> Any:
    """Divide by a power of the sum of squares over ``nsize`` neighbouring channels.

    Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural
    networks", NIPS 2012, section 3.3.
    """
    if nsize < 1 or nsize % 2 == 0:
        raise ConfigError(f"LRN: got nsize {nsize}, needed an odd number")
    n = data.shape[1]
    half = min(nsize // 2, n)  # beyond the last channel there are zeros only
    wide = pad(square(data), [(0, 0), (half, half), *[(0, 0)] * (data.ndim - 2)])
    total = wide[:, 0:n]
    for first in range(1, 2 * half + 1):
        total = total + wide[:, first : first + n]
    return data * power(total * (alpha / nsize) + knorm, -beta)


def _l2(data: Any, *, eps: float, mode: str) -> Any:
    axes = {
        "instance": tuple(range(1, data.ndim)), "channel": (1,),
        "spatial": tuple(range(2, data.ndim)),
    }  # fmt: skip
    if mode not in axes:
        raise ConfigError(f"L2Normalization: got {mode!r}, needed one of {', '.join(axes)}")
    return data * rsqrt(sum(square(data), axes[mode], keepdims=True) + eps)


def _instance_norm(data: Any, gamma: Any, beta: Any, *, eps: float) -> Any:
    axes = tuple(range(2, data.ndim))
    shape = (1, data.shape[1], *(1,) * len(axes))
    centred = data - mean(data, axes, keepdims=True)
    scale = rsqrt(mean(square(centred), axes, keepdims=True) + eps)
    return centred * scale * reshape(gamma, shape) + reshape(beta, shape)


def _channel_shapes(attrs: Attrs, shapes: Shapes) -> Shapes:
    data = first_shape(shapes)
    return [data, (data[1],), (data[1],)]


def _softmax_activation(data: Any, *, mode: str) -> Any:
    if mode not in ("channel", "instance"):
        raise ConfigError(f"SoftmaxActivation: got {mode!r}, needed instance or channel")
    if mode == "channel":
        return softmax(data, axis=1)
    # Of an image, MXNet 1.9.1 takes values along the last axis and gradients over the whole,
    # as its manual says.
    return reshape(softmax(reshape(data, (data.shape[0], -1))), data.shape)


def _upsampling(*data: Any, scale: int, sample_type: str, **attrs: Any) -> Any:
    if sample_type != "nearest":
        raise ConfigError(f"UpSampling: got sample_type {sample_type!r}, needed nearest")
    height = data[0].shape[2] * scale
    parts = []
    for x in data:
        if height % x.shape[2]:
            raise ShapeError(f"UpSampling: got {x.shape[2]} rows, needed a divisor of {height}")
        times = height // x.shape[2]
        parts.append(repeat(repeat(x, times, 2), times, 3))
    if attrs["multi_input_mode"] == "sum":
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total
    return concat(parts, 1) if len(parts) > 1 else parts[0]


def _crop(data: Any, like: Any = None, **attrs: Any) -> Any:
    height, width = attrs["h_w"] if like is None else like.shape[2:]
    top, left = attrs["offset"]
    if attrs["center_crop"]:
        top, left = (data.shape[2] - height) // 2, (data.shape[3] - width) // 2
    if min(top, left) < 0 or top + height > data.shape[2] or left + width > data.shape[3]:
        raise ShapeError(
            f"Crop: got {height} x {width} at ({top}, {left}) of an image of shape {data.shape}"
        )
    return data[:, :, top : top + height, left : left + width]


IMAGES = (
    Operator(
        "LRN", _lrn,
        attrs={"nsize": INT, "alpha": FLOAT.or_else(1e-4), "beta": FLOAT.or_else(0.75),
               "knorm": FLOAT.or_else(2.0)},
    ),
    Operator(
        "L2Normalization", _l2,
        attrs={"eps": FLOAT.or_else(1e-10), "mode": TEXT.or_else("instance")},
    ),
    Operator(
        "InstanceNorm", _instance_norm, ("data", "gamma", "beta"),
        {"eps": FLOAT.or_else(1e-3)}, shapes=_channel_shapes,
    ),
    Operator(
        "SoftmaxActivation", _softmax_activation, attrs={"mode": TEXT.or_else("instance")}
    ),
    Operator(
        "UpSampling", _upsampling, (),
        {"scale": INT, "sample_type": TEXT, "num_args": INT.or_else(1),
         "multi_input_mode": TEXT.or_else("concat"), "num_filter": INT.or_else(0)},
        count="num_args",
    ),
    Operator(
        "Crop", _crop, (),
        {"num_args": INT.or_else(1), "offset": SHAPE.or_else((0, 0)),
         "h_w": SHAPE.or_else((0, 0)), "center_crop": BOOL.or_else(False)},
        count="num_args",
    ),
)  # fmt: skip
