"""The activation functions and their gradients as formulas of one element.

The kernels in `hpctrain.ops.activations` compute the same in NumPy's large steps.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from hpctrain.autograd import element

__all__ = ["CUBIC", "FORMULAS", "SCALE", "largest_exponent"]

CUBIC = 0.044715  # of the tanh form of gelu: Hendrycks and Gimpel, 2016
SCALE = math.sqrt(2 / math.pi)


def largest_exponent(dtype: Any) -> float:
    """Return a number whose exponential is just not infinite."""
    return math.log(float(np.finfo(dtype).max)) - 0.1


def _leak(y: Any, slope: float) -> Any:
    return element.where(y <= 0, slope, element.constant(1.0, y))


def _softplus(x: Any) -> Any:
    return element.maximum(x, 0) + element.log1p(element.exp(-element.absolute(x)))


def _silu(x: Any) -> Any:
    return element.maximum(x, -largest_exponent(x.dtype)) * element.sigmoid(x)


def _silu_grad(x: Any, dy: Any) -> Any:
    s, held = element.sigmoid(x), element.maximum(x, -largest_exponent(x.dtype))
    return s * ((1 - s) * held + 1) * dy


def _distribution(x: Any, approximate: bool) -> Any:
    """Return the normal distribution function Φ(x)."""
    if approximate:  # (1 + tanh(u)) / 2 = sigmoid(2 u), which takes half the time
        return element.sigmoid((x * x * (2 * SCALE * CUBIC) + 2 * SCALE) * x)
    return 0.5 + 0.5 * element.erf(x * math.sqrt(0.5))


def _gelu(x: Any, approximate: bool) -> Any:
    return x * _distribution(x, approximate)


def _gelu_grad(x: Any, dy: Any, approximate: bool) -> Any:
    p = _distribution(x, approximate)
    if approximate:
        slope = (x * x * (3 * SCALE * CUBIC) + SCALE) * x
        return p * ((1 - p) * 2 * slope + 1) * dy
    return (p + x * element.exp(x * x * -0.5) * (0.5 * SCALE)) * dy


FORMULAS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "relu": lambda x: element.maximum(x, 0),
        "relu_grad": lambda y, dy: element.where(y <= 0, 0, dy),
        "leaky_relu": lambda x, slope: x * _leak(x, slope),
        "leaky_relu_grad": lambda y, dy, slope: dy * _leak(y, slope),
        "sigmoid": element.sigmoid,
        "sigmoid_grad": lambda y, dy: (1 - y) * y * dy,
        "tanh": element.tanh,
        "tanh_grad": lambda y, dy: (1 - y * y) * dy,
        "softplus": _softplus,
        "silu": _silu,
        "silu_grad": _silu_grad,
        "gelu": _gelu,
        "gelu_grad": _gelu_grad,
    }
)
