"""Activation functions, each with its gradient fused into one kernel.

A gradient is taken from the result where the result is enough (relu, leaky_relu, sigmoid,
tanh), so that the argument need not be kept; from the argument otherwise (gelu, silu).
"""

from collections.abc import Callable, Sequence
from typing import Any

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.ops.rules import floating, need, tensors

__all__ = ["relu"]


def _infer(name: str) -> Callable[..., Sequence[Spec]]:
    def infer(specs: Sequence[Spec], **_: Any) -> list[Spec]:
        return [floating(name, specs[0])]

    return infer


def _grad_infer(name: str) -> Callable[..., Sequence[Spec]]:
    def infer(specs: Sequence[Spec], **_: Any) -> list[Spec]:
        need(specs[0] == specs[1], name, specs, "equal shapes and dtypes")
        return [specs[0]]

    return infer


def _relu(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    xp.maximum(ins[0], 0, out=outs[0])


def _relu_grad(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    y, dy = ins
    xp.multiply(dy, y > 0, out=outs[0])


register(
    Primitive(
        "relu", "elementwise", _infer("relu"), _relu,
        lambda i, o, g: [apply("relu_grad", o[0], g[0])], inplace=((0, 0),),
    )
)  # fmt: skip
register(
    Primitive(
        "relu_grad", "elementwise", _grad_infer("relu_grad"), _relu_grad,
        lambda i, o, g: [None, apply("relu_grad", i[0], g[0])], inplace=((0, 0), (1, 0)),
    )
)  # fmt: skip


def relu(x: Any) -> Any:
    """Return ``max(x, 0)``; the gradient at 0 is 0."""
    return apply("relu", *tensors(x))
