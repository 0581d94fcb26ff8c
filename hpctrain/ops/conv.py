"""Convolution in one, two or three dimensions, channels last, and its transposes.

Three rows, each the gradient of the others: ``conv`` is linear in the input and in the weight,
``conv_grad_data`` is its adjoint in the input, ``conv_grad_weight`` that in the weight. The
kernels are in `hpctrain.ops.dnnl_conv` and, for all that oneDNN has no kernel for, in
`hpctrain.ops.conv_kernel`.

Dimension key: N images, (D, H, W) space, C channels, O outputs, G groups.
"""

from collections.abc import Sequence
from typing import Any

from hpctrain.autograd import Primitive, Spec, apply, as_tensor, register
from hpctrain.autograd.narrow import wide
from hpctrain.errors import ShapeError
from hpctrain.ops.conv_kernel import (
    data_kernel,
    data_plans,
    data_scratch,
    forward_kernel,
    forward_scratch,
    plan_of,
    weight_kernel,
    weight_scratch,
    weight_spec,
)
from hpctrain.ops.conv_then import then
from hpctrain.ops.dnnl_conv import data_program, forward_program, weight_program
from hpctrain.ops.dnnl_row import Products
from hpctrain.ops.dnnl_then import data_then_program, forward_then_program
from hpctrain.ops.im2col import Plan
from hpctrain.ops.windows import pairs, tuples

__all__ = ["conv", "conv_transpose"]


def conv(  # noqa: PLR0913 (the arguments of the field)
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    """Convolve images with a weight (cross-correlation, as everywhere in deep learning).

    Parameters
    ----------
    x : Tensor, shape (N, *space, C), one to three axes of space
    weight : Tensor, shape (O, *kernel, C / groups), same dtype
    bias : Tensor, shape (O,), or None
    stride, dilation : int or one for each axis
    padding : int, one for each axis, or a pair (before, after) for each axis
        Zeros around the input.
    groups : int
        Channels and outputs are cut into as many groups that do not see each other.

    Returns
    -------
    Tensor, shape (N, *out, O)

    Raises
    ------
    ShapeError
        If shapes or dtypes do not fit, or a window does not fit into the padded input.

    Notes
    -----
    Cost: ``2 N prod(out) O prod(kernel) C / G`` operations.
    """
    x = as_tensor(x)
    weight = as_tensor(weight, like=x)
    n = x.ndim - 2
    attrs = {
        "stride": tuples(stride, n, "conv: stride"),
        "padding": pairs(padding, n, "conv: padding"),
        "dilation": tuples(dilation, n, "conv: dilation"),
        "groups": int(groups),
    }
    inputs = (x, weight) if bias is None else (x, weight, as_tensor(bias, like=x))
    return apply("conv", *inputs, **attrs)


def conv_transpose(  # noqa: PLR0913
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    """Apply the adjoint of a convolution: ``stride`` widens the image instead of narrowing it.

    Parameters
    ----------
    x : Tensor, shape (N, *space, C)
    weight : Tensor, shape (C, *kernel, O / groups), same dtype
        The weight of the convolution from O to C channels that this is the adjoint of.
    bias : Tensor, shape (O,), or None
    stride, padding, dilation, groups
        Of that convolution.
    output_padding : int or one for each axis
        Added to the length of the result at its end.

    Returns
    -------
    Tensor, shape (N, *out, O)
        ``out = (space - 1) stride - padding + dilation (kernel - 1) + 1 + output_padding``.
    """
    x = as_tensor(x)
    weight = as_tensor(weight, like=x)
    n = x.ndim - 2
    _check_rank("conv_transpose", x.spec, weight.spec)
    steps = tuples(stride, n, "conv_transpose: stride")
    pads = pairs(padding, n, "conv_transpose: padding")
    holes = tuples(dilation, n, "conv_transpose: dilation")
    more = tuples(output_padding, n, "conv_transpose: output_padding")
    size = tuple(
        (x.shape[i + 1] - 1) * steps[i] - sum(pads[i])
        + holes[i] * (weight.shape[i + 1] - 1) + 1 + more[i]
        for i in range(n)
    )  # fmt: skip
    y = apply("conv_grad_data", x, weight, size=size, stride=steps, padding=pads,
              dilation=holes, groups=int(groups))  # fmt: skip
    return y if bias is None else apply("add", y, as_tensor(bias, like=x))


def _check_rank(where: str, x: Spec, weight: Spec) -> None:
    if not 3 <= x.ndim <= 5 or weight.ndim != x.ndim or x.dtype != weight.dtype:
        raise ShapeError(
            f"{where}: got {x} and a weight {weight}, needed one dtype and the same number of "
            "axes, one to three of them space: (N, *space, C) and (O, *kernel, C / groups)"
        )


def _check_channels(where: str, x: Spec, channels: int, outputs: int, groups: int) -> None:
    if groups < 1 or channels != x.shape[-1] or outputs % groups:
        raise ShapeError(
            f"{where}: got {x} for a weight of {channels} channels and {outputs} outputs in "
            f"{groups} groups, needed as many channels, and outputs that the groups divide"
        )


def _out(plan: Plan, ndim: int) -> tuple[int, ...]:
    return plan.window.out[5 - ndim :]


def _infer(specs: Sequence[Spec], **attrs: Any) -> list[Spec]:
    x, weight = specs[:2]
    _check_rank("conv", x, weight)
    groups = attrs["groups"]
    _check_channels("conv", x, weight.shape[-1] * groups, weight.shape[0], groups)
    if len(specs) > 2 and specs[2] != wide(x).with_shape(weight.shape[:1]):
        raise ShapeError(f"conv: got a bias {specs[2]}, needed {weight.shape[0]} of {x.dtype}")
    plan = plan_of(x.shape[1:-1], weight, x.shape[0], attrs)
    return [wide(x).with_shape((x.shape[0], *_out(plan, x.ndim), weight.shape[0]))]


def _vjp(inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> list[Any]:
    x, weight = inputs[:2]
    (dy,) = cotangents
    rules = [
        lambda: apply("conv_grad_data", dy, weight, size=x.shape[1:-1], **attrs),
        lambda: apply("conv_grad_weight", x, dy, kernel=weight.shape[1:-1], **attrs),
        lambda: apply("sum", dy, axis=tuple(range(dy.ndim - 1)), keepdims=False),
    ]
    return rules[: len(inputs)]


def _data_infer(specs: Sequence[Spec], *, size: Any, **attrs: Any) -> list[Spec]:
    dy, weight = specs
    _check_rank("conv_grad_data", dy, weight)
    channels = weight.shape[-1] * attrs["groups"]
    _check_channels("conv_grad_data", dy, weight.shape[0], channels, attrs["groups"])
    plan = data_plans(specs, size, attrs)[0]
    if _out(plan, dy.ndim) != dy.shape[1:-1]:
        raise ShapeError(
            f"conv_grad_data: got {dy}, needed {_out(plan, dy.ndim)} results for an input of "
            f"{tuple(size)}"
        )
    return [wide(dy).with_shape((dy.shape[0], *size, channels))]


def _data_vjp(
    inputs: Any, outputs: Any, cotangents: Any, *, size: Any, **attrs: Any
) -> list[Any]:
    dy, weight = inputs
    (g,) = cotangents
    return [
        lambda: apply("conv", g, weight, **attrs),
        lambda: apply("conv_grad_weight", g, dy, kernel=weight.shape[1:-1], **attrs),
    ]


def _weight_infer(specs: Sequence[Spec], *, kernel: Any, **attrs: Any) -> list[Spec]:
    weight = weight_spec(specs, kernel, attrs["groups"])
    expected = _infer([specs[0], weight], **attrs)[0]
    if expected != wide(specs[1]) or specs[0].dtype != specs[1].dtype:
        raise ShapeError(f"conv_grad_weight: got a cotangent {specs[1]}, needed {expected}")
    return [wide(weight)]


def _weight_vjp(
    inputs: Any, outputs: Any, cotangents: Any, *, kernel: Any, **attrs: Any
) -> list[Any]:
    x, dy = inputs
    (g,) = cotangents
    return [
        lambda: apply("conv_grad_data", dy, g, size=x.shape[1:-1], **attrs),
        lambda: apply("conv", x, g, **attrs),
    ]


_FORWARD = Products(_infer, forward_program, forward_kernel, forward_scratch)
_DATA = Products(_data_infer, data_program, data_kernel, data_scratch)
_WEIGHT = Products(_weight_infer, weight_program, weight_kernel, weight_scratch)

_FORWARD_THEN = then("conv", forward_then_program, _infer, forward_kernel, forward_scratch)
_DATA_THEN = then("conv_grad_data", data_then_program, _data_infer, data_kernel, data_scratch)

register(Primitive("conv", "window", _infer, _FORWARD.kernel, _vjp,
                   any_strides=True, then=_FORWARD_THEN, **_FORWARD.columns))  # fmt: skip
register(Primitive("conv_grad_data", "window", _data_infer, _DATA.kernel, _data_vjp,
                   any_strides=True, then=_DATA_THEN, **_DATA.columns))  # fmt: skip
register(Primitive("conv_grad_weight", "window", _weight_infer, _WEIGHT.kernel, _weight_vjp,
                   any_strides=True, **_WEIGHT.columns))  # fmt: skip
