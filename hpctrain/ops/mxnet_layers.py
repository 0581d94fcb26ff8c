"""MXNet's layers as functions of tensors: dense, activations, normalisation, dropout."""

import math
from typing import Any

from hpctrain.autograd import assign
from hpctrain.autograd.mode import is_training
from hpctrain.errors import ConfigError
from hpctrain.ops.activations import gelu, leaky_relu, relu, sigmoid, softplus, tanh
from hpctrain.ops.compare import greater, where
from hpctrain.ops.elementwise import cast, minimum, ones_like
from hpctrain.ops.gather import embedding
from hpctrain.ops.layer_norm import layer_norm
from hpctrain.ops.linalg import dense
from hpctrain.ops.movement import expand_dims, flatten, reshape, transpose
from hpctrain.ops.mxnet_row import (
    BOOL,
    DTYPE,
    FLOAT,
    INT,
    SHAPE,
    TEXT,
    Attrs,
    Operator,
    Shape,
    Shapes,
    first_shape,
    no_bias,
)
from hpctrain.ops.norm import batch_norm, batch_norm_inference
from hpctrain.ops.random import advance, dropout
from hpctrain.ops.unary import abs, expm1

__all__ = ["LAYERS"]


def _fully_connected(data: Any, weight: Any, bias: Any = None, **attrs: Any) -> Any:
    wide = attrs["flatten"] and data.ndim != 2
    return dense(reshape(data, (data.shape[0], -1)) if wide else data, weight, bias)


def _dense_shapes(attrs: Attrs, shapes: Shapes) -> Shapes:
    data, n = first_shape(shapes), attrs["num_hidden"]
    width = math.prod(data[1:]) if attrs["flatten"] else data[-1]
    return [data, (n, width), (n,)][: len(shapes)]


def _activation(data: Any, *, act_type: str) -> Any:
    kinds = {"relu": relu, "sigmoid": sigmoid, "tanh": tanh, "softrelu": softplus}
    if act_type == "softsign":
        return data / (abs(data) + 1)
    if act_type not in kinds:
        raise ConfigError(f"Activation: got {act_type!r}, needed one of {', '.join(kinds)}")
    return kinds[act_type](data)


def _leaky_relu(data: Any, gamma: Any = None, **attrs: Any) -> Any:
    kind, slope = attrs["act_type"], attrs["slope"]
    if kind == "leaky":
        return leaky_relu(data, slope)
    if kind == "gelu":
        return gelu(data, approximate=False)
    if kind == "prelu":
        shape = (1, gamma.size, *(1,) * (data.ndim - 2)) if gamma.size > 1 else gamma.shape
        return where(greater(data, 0), data, data * reshape(gamma, shape))
    if kind in ("elu", "selu"):
        alpha, scale = (
            (slope, 1.0) if kind == "elu" else (1.6732632423543772, 1.0507009873554805)
        )
        return where(greater(data, 0), data, expm1(minimum(data, 0)) * alpha) * scale
    raise ConfigError(f"LeakyReLU: got {kind!r}, needed leaky, elu, selu, gelu or prelu")


def _leaky_shapes(attrs: Attrs, shapes: Shapes) -> Shapes:
    data = first_shape(shapes)
    return [data, (data[1],)][: len(shapes)]


def _last(axis: int, ndim: int) -> tuple[list[int], list[int]]:
    """Return the order of axes that brings ``axis`` to the end, and the way back."""
    order = [a for a in range(ndim) if a != axis % ndim] + [axis % ndim]
    return order, [order.index(a) for a in range(ndim)]


def _batch_norm(x: Any, gamma: Any, beta: Any, mean: Any, var: Any, **attrs: Any) -> Any:
    """Normalise, and move the running statistics on while training."""
    if attrs["fix_gamma"]:
        gamma = ones_like(gamma)
    order, back = _last(attrs["axis"], x.ndim)
    turned = transpose(x, order)
    if attrs["use_global_stats"] or not is_training():
        y = batch_norm_inference(turned, gamma, beta, mean, var, attrs["eps"])
        seen = (mean, var)
    else:
        y, *rest = batch_norm(turned, gamma, beta, attrs["eps"])
        seen = (rest[0], rest[1])
        keep = attrs["momentum"]
        for running, batch in ((mean, seen[0]), (var, seen[1])):
            assign(running, running * keep + batch.detach() * (1 - keep))
    y = transpose(y, back)
    return (y, *seen) if attrs["output_mean_var"] else y


def _channel_shapes(attrs: Attrs, shapes: Shapes) -> Shapes:
    data = first_shape(shapes)
    return [data, *((data[attrs["axis"]],) for _ in shapes[1:])]


def _two_channel_shapes(attrs: Attrs, shapes: Shapes) -> Shapes:
    width = (first_shape(shapes)[attrs["axis"]],)
    return [width, width]


def _layer_norm(data: Any, gamma: Any, beta: Any, *, axis: int, eps: float) -> Any:
    order, back = _last(axis, data.ndim)
    return transpose(layer_norm(transpose(data, order), gamma, beta, eps)[0], back)


def _dropout(data: Any, *, p: float, mode: str, axes: Shape, stream: Any = None) -> Any:
    if not p or not (is_training() or mode == "always"):
        return data
    if stream is None:
        raise ConfigError("Dropout: got no stream of random numbers; give stream=")
    x = data
    if axes:  # one draw for all elements along these axes
        x = ones_like(
            data[tuple(slice(0, 1 if i in axes else n) for i, n in enumerate(data.shape))]
        )
    y = dropout(x, stream, p)[0]
    assign(stream, advance(stream))
    return data * y if axes else y


def _embedding(data: Any, weight: Any, **attrs: Any) -> Any:
    return embedding(cast(data, "int64"), weight)


def _embedding_shapes(attrs: Attrs, shapes: Shapes) -> Shapes:
    return [first_shape(shapes), (attrs["input_dim"], attrs["output_dim"])]


_WEIGHTS = ("data", "weight", "bias")
LAYERS = (
    Operator(
        "FullyConnected", _fully_connected, _WEIGHTS,
        {"num_hidden": INT, "no_bias": BOOL.or_else(False), "flatten": BOOL.or_else(True)},
        omit=no_bias, shapes=_dense_shapes,
    ),
    Operator("Activation", _activation, attrs={"act_type": TEXT}),
    Operator(
        "LeakyReLU", _leaky_relu, ("data", "gamma"),
        {"act_type": TEXT.or_else("leaky"), "slope": FLOAT.or_else(0.25),
         "lower_bound": FLOAT.or_else(0.125), "upper_bound": FLOAT.or_else(0.334)},
        omit=lambda attrs: () if attrs["act_type"] == "prelu" else ("gamma",),
        shapes=_leaky_shapes, inits={"gamma": '["Constant", {"value": 0.25}]'},
    ),
    Operator(
        "BatchNorm", _batch_norm, ("data", "gamma", "beta"),
        {"eps": FLOAT.or_else(1e-3), "momentum": FLOAT.or_else(0.9), "axis": INT.or_else(1),
         "fix_gamma": BOOL.or_else(True), "use_global_stats": BOOL.or_else(False),
         "output_mean_var": BOOL.or_else(False)},
        aux=("moving_mean", "moving_var"), shapes=_channel_shapes,
        aux_shapes=_two_channel_shapes,
        outputs=lambda attrs: 3 if attrs["output_mean_var"] else 1,
        results=("output", "mean", "var"),
        inits={"moving_mean": '["zero", {}]', "moving_var": '["one", {}]'},
    ),
    Operator(
        "LayerNorm", _layer_norm, ("data", "gamma", "beta"),
        {"axis": INT.or_else(-1), "eps": FLOAT.or_else(1e-5)}, shapes=_channel_shapes,
    ),
    Operator(
        "Dropout", _dropout,
        attrs={"p": FLOAT.or_else(0.5), "mode": TEXT.or_else("training"),
               "axes": SHAPE.or_else(())},
        random=True,
    ),
    Operator(
        "Embedding", _embedding, ("data", "weight"),
        {"input_dim": INT, "output_dim": INT, "dtype": DTYPE.or_else("float32")},
        shapes=_embedding_shapes,
    ),
    Operator("Flatten", lambda data: flatten(data)),
    Operator(
        "expand_dims", lambda data, axis: expand_dims(data, axis), attrs={"axis": INT}
    ),
)  # fmt: skip
