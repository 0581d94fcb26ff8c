"""MXNet's output operators: what they give is one thing, the gradient they start is another.

``SoftmaxOutput`` gives probabilities, and its gradient is that of the cross-entropy with
respect to its input, whatever is asked for behind it. So the last operator of a symbol is its
loss, and ``backward`` needs no cotangent.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.autograd.mode import is_recording
from hpctrain.errors import ConfigError
from hpctrain.ops.activations import sigmoid
from hpctrain.ops.compare import greater, not_equal, where
from hpctrain.ops.elementwise import cast, maximum, ones_like, zeros_like
from hpctrain.ops.gather import one_hot
from hpctrain.ops.movement import expand_dims, reshape, transpose
from hpctrain.ops.mxnet_row import BOOL, FLOAT, TEXT, Attrs, Operator, Shapes
from hpctrain.ops.reduce import sum
from hpctrain.ops.rules import need
from hpctrain.ops.softmax import softmax
from hpctrain.ops.unary import sign

__all__ = ["OUTPUTS"]


# One row for all: (x, value, label) gives value; the gradient of x is a rule's.


def _infer(specs: Sequence[Spec], **_: Any) -> list[Spec]:
    need(specs[0].shape == specs[1].shape, "loss_output", specs[:2], "equal shapes")
    return [specs[1]]


def _kernel(xp: Any, ins: Any, outs: Any, scratch: Any, **_: Any) -> None:
    if outs[0] is not ins[1]:
        xp.copyto(outs[0], ins[1])


def _vjp(inputs: Any, outputs: Any, given: Any, rule: str, attrs: Any) -> list[Any]:
    return [lambda: _RULES[rule](outputs[0], inputs[2], given[0], dict(attrs)), None, None]


register(Primitive("loss_output", "elementwise", _infer, _kernel, _vjp, inplace=((1, 0),)))


def _output(x: Any, value: Any, label: Any, rule: str, attrs: Attrs) -> Any:
    if not is_recording():
        return value
    return apply("loss_output", x, value, label, rule=rule, attrs=tuple(sorted(attrs.items())))


# Softmax


def _softmax_output(data: Any, label: Any, **attrs: Any) -> Any:
    if attrs["normalization"] not in ("null", "batch", "valid"):
        raise ConfigError(
            f"SoftmaxOutput: got normalization {attrs['normalization']!r}, needed null, batch "
            "or valid"
        )
    x = data.detach()
    if attrs["multi_output"]:
        value = softmax(x, axis=1)
    elif attrs["preserve_shape"]:
        value = softmax(x, axis=-1)
    else:
        value = reshape(softmax(reshape(x, (x.shape[0], -1))), x.shape)
    if label.shape != data.shape:
        fits = label.size * data.shape[_class_axis(data, attrs)] == data.size
        flat = not attrs["multi_output"] and not attrs["preserve_shape"]
        fits = label.size == data.shape[0] if flat else fits
        need(fits, "SoftmaxOutput", [data.spec, label.spec], "one label for each softmax")
    return _output(data, value, label, "softmax", attrs)


def _class_axis(data: Any, attrs: Attrs) -> int:
    return 1 if attrs["multi_output"] else data.ndim - 1


def _softmax_gradient(p: Any, label: Any, given: Any, attrs: dict[str, Any]) -> Any:
    scale = attrs["grad_scale"]
    if label.shape == p.shape:
        gradient = (p - cast(label, p.dtype)) * scale
        return gradient * given if attrs["out_grad"] else gradient
    rows, classes, places = _folding(p.shape, label, attrs)
    label = reshape(label, (rows, places))
    counted = not_equal(label, attrs["ignore_label"])
    known = where(counted, label, zeros_like(label)) if attrs["use_ignore"] else label
    ids = cast(known, "int64")
    gradient = reshape(p, (rows, classes, places)) - transpose(
        _targets(ids, classes, p.dtype, attrs["smooth_alpha"]), (0, 2, 1)
    )
    if attrs["use_ignore"]:
        gradient = gradient * expand_dims(cast(counted, p.dtype), 1)
    if attrs["multi_output"] and attrs["normalization"] != "valid":
        scale /= places
    if attrs["normalization"] == "valid":
        gradient = gradient / maximum(sum(cast(counted, p.dtype)), 1)
    elif attrs["normalization"] == "batch":
        # Labels are one flat list unless multi_output keeps the batch apart.
        scale /= max(1, rows if attrs["multi_output"] else label.size)
    gradient = reshape(gradient * scale, p.shape)
    return gradient * given if attrs["out_grad"] else gradient


def _folding(shape: Sequence[int], label: Any, attrs: Attrs) -> tuple[int, int, int]:
    """Return rows, classes and places of the array that holds one softmax along axis 1."""
    if attrs["multi_output"]:
        return shape[0], shape[1], math.prod(shape[2:])
    if attrs["preserve_shape"]:
        return label.size, shape[-1], 1
    return shape[0], math.prod(shape[1:]), 1


def _targets(ids: Any, classes: int, dtype: Any, alpha: float) -> Any:
    """Return the wanted probabilities, 1 - alpha at the label and the rest evenly spread."""
    hot = one_hot(ids, classes, np.dtype(dtype).name)
    if not alpha:
        return hot
    rest = alpha / (classes - 1)
    return hot * (1 - alpha - rest) + rest


def _softmax_shapes(attrs: Attrs, shapes: Shapes) -> Shapes:
    data = shapes[0]
    assert data is not None
    if attrs["multi_output"]:
        return [data, (data[0], *data[2:])]
    return [data, data[:-1] if attrs["preserve_shape"] else data[:1]]


# Regression, and losses computed by the symbol itself


def _regression(rule: str, link: Callable[[Any], Any]) -> Callable[..., Any]:
    def function(data: Any, label: Any, grad_scale: float) -> Any:
        need(data.size == label.size, rule, [data.spec, label.spec], "as many labels")
        value = link(data.detach())
        return _output(data, value, label, rule, {"grad_scale": grad_scale})

    return function


def _difference(y: Any, label: Any) -> Any:
    return y - reshape(cast(label, y.dtype), y.shape)


def _outputs_each(label: Any) -> int:
    """Return the number of outputs of each sample, over which MXNet averages."""
    return max(1, label.size // max(1, label.shape[0]))


def _linear_gradient(y: Any, label: Any, given: Any, attrs: dict[str, Any]) -> Any:
    return _difference(y, label) * (attrs["grad_scale"] / _outputs_each(label))


def _sign_gradient(y: Any, label: Any, given: Any, attrs: dict[str, Any]) -> Any:
    return sign(_difference(y, label)) * (attrs["grad_scale"] / _outputs_each(label))


def _make_loss(data: Any, **attrs: Any) -> Any:
    return _output(data, data.detach(), data.detach(), "MakeLoss", attrs)


def _loss_gradient(y: Any, _: Any, given: Any, attrs: dict[str, Any]) -> Any:
    gradient = ones_like(y) * attrs["grad_scale"]
    if attrs["normalization"] == "batch":
        return gradient * (1 / max(1, y.shape[0]))
    if attrs["normalization"] == "valid":
        valid = sum(cast(greater(y, attrs["valid_thresh"]), y.dtype))
        return gradient / maximum(valid, 1)
    return gradient


_RULES: Mapping[str, Callable[[Any, Any, Any, dict[str, Any]], Any]] = MappingProxyType(
    {
        "softmax": _softmax_gradient,
        "LinearRegressionOutput": _linear_gradient,
        "LogisticRegressionOutput": _linear_gradient,
        "MAERegressionOutput": _sign_gradient,
        "MakeLoss": _loss_gradient,
    }
)


def _regression_shapes(attrs: Attrs, shapes: Shapes) -> Shapes:
    data, label = shapes
    assert data is not None
    plain = data[:1] if len(data) == 2 and data[1] == 1 else data
    return [data, plain if label is None else label]


_SCALE = {"grad_scale": FLOAT.or_else(1.0)}

OUTPUTS = (
    Operator(
        "SoftmaxOutput", _softmax_output, ("data", "label"),
        {**_SCALE, "ignore_label": FLOAT.or_else(-1.0), "multi_output": BOOL.or_else(False),
         "use_ignore": BOOL.or_else(False), "preserve_shape": BOOL.or_else(False),
         "normalization": TEXT.or_else("null"), "out_grad": BOOL.or_else(False),
         "smooth_alpha": FLOAT.or_else(0.0)},
        shapes=_softmax_shapes,
    ),
    *(
        Operator(
            name, _regression(name, link), ("data", "label"), _SCALE, shapes=_regression_shapes
        )
        for name, link in (
            ("LinearRegressionOutput", lambda x: x),
            ("MAERegressionOutput", lambda x: x),
            ("LogisticRegressionOutput", sigmoid),
        )
    ),
    Operator(
        "MakeLoss", _make_loss,
        attrs={**_SCALE, "valid_thresh": FLOAT.or_else(0.0),
               "normalization": TEXT.or_else("null")},
    ),
    Operator("BlockGrad", lambda data: data.detach()),
)  # fmt: skip
