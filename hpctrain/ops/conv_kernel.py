"""Kernels of the three convolution rows: which plan, which scratch, which loops.

With as many groups as channels there is nothing to multiply as matrices, and
`hpctrain.ops.depthwise` takes over; else it is `hpctrain.ops.im2col`.
"""

from collections.abc import Sequence
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.ops.depthwise import (
    depthwise,
    depthwise_data,
    depthwise_data_scratch,
    depthwise_scratch,
    depthwise_weight,
)
from hpctrain.ops.im2col import Plan, correlate, correlate_weight, scatter, swapped
from hpctrain.ops.windows import Window, as_volume, merge_images

__all__ = [
    "data_kernel",
    "data_plans",
    "data_scratch",
    "forward_kernel",
    "forward_scratch",
    "plan_of",
    "weight_kernel",
    "weight_scratch",
    "weight_spec",
]  # fmt: skip


def plan_of(size: Any, weight: Spec, images: int, attrs: dict[str, Any]) -> Plan:
    """Return the plan of the convolution over ``size`` with ``weight``."""
    groups = attrs["groups"]
    window = Window.make(
        tuple(size), weight.shape[1:-1], attrs["stride"], attrs["padding"], attrs["dilation"]
    )
    return Plan(window, images, weight.shape[-1] * groups, weight.shape[0], groups,
                weight.dtype.itemsize)  # fmt: skip


def forward_scratch(specs: Sequence[Spec], **attrs: Any) -> list[Spec]:
    """Return the scratch of ``conv``."""
    x, weight = specs[:2]
    plan, dtype = plan_of(x.shape[1:-1], weight, x.shape[0], attrs), x.dtype
    line = plan.window.out[2] * plan.outputs if len(specs) > 2 else 0
    if plan.depthwise:
        return [*depthwise_scratch(plan, dtype), Spec((line,), dtype)]
    return [*plan.scratch(dtype), Spec((line,), dtype)]


def forward_kernel(xp: Any, ins: Any, outs: Any, scratch: Any, **attrs: Any) -> None:
    """Run ``conv`` on (x, weight) or (x, weight, bias)."""
    x, weight = ins[:2]
    plan = plan_of(x.shape[1:-1], Spec.of(weight), x.shape[0], attrs)
    *rest, line = scratch
    if len(ins) > 2:
        line.reshape(-1, plan.outputs)[...] = ins[2]
    if plan.depthwise:
        flat = weight.reshape(plan.channels, plan.depth)
        depthwise(xp, as_volume(x), flat, as_volume(outs[0]), plan.window, rest)
        if len(ins) > 2:
            rows = outs[0].reshape(-1, line.size)
            xp.add(rows, line, out=rows)
        return
    flat = weight.reshape(plan.groups, plan.outputs // plan.groups, plan.depth)
    rest = [*rest, line if len(ins) > 2 else None]
    correlate(xp, as_volume(x), flat, merge_images(outs[0], 1), plan, rest)


def data_plans(specs: Sequence[Spec], size: Any, attrs: dict[str, Any]) -> tuple[Plan, Any]:
    """Return the forward plan, and that of the equal convolution of dy if the stride is 1."""
    dy, weight = specs
    plan = plan_of(size, weight, dy.shape[0], attrs)
    window = plan.window
    if window.stride != (1, 1, 1):
        return plan, None
    space = zip(window.dilation, window.kernel, window.before, strict=True)
    before: Any = tuple(d * (k - 1) - b for d, k, b in space)
    steps, holes = window.stride, window.dilation
    back = Window(window.out, window.kernel, steps, before, holes, window.size)
    return plan, Plan(back, plan.images, plan.outputs, plan.channels, plan.groups,
                      plan.itemsize)  # fmt: skip


def data_scratch(specs: Sequence[Spec], *, size: Any, **attrs: Any) -> list[Spec]:
    """Return the scratch of ``conv_grad_data``."""
    plan, back = data_plans(specs, size, attrs)
    dtype = specs[0].dtype
    if plan.depthwise:
        return depthwise_data_scratch(plan, dtype)
    if back is not None:
        return [*back.scratch(dtype), Spec((specs[1].size,), dtype)]
    return [Spec(plan.padded, dtype), Spec((plan.columns,), dtype), Spec((0,), dtype)]


def data_kernel(xp: Any, ins: Any, outs: Any, scratch: Any, *, size: Any, **attrs: Any) -> None:
    """Run ``conv_grad_data`` on (dy, weight)."""
    dy, weight = ins
    plan, back = data_plans([Spec.of(a) for a in ins], size, attrs)
    padded, columns, flipped = scratch
    groups = plan.groups
    flat = weight.reshape(groups, plan.outputs // groups, plan.depth)
    if plan.depthwise:
        volumes = as_volume(dy), flat[:, 0], as_volume(outs[0])
        depthwise_data(xp, *volumes, plan.window, scratch)
        return
    if back is None:
        scatter(xp, merge_images(dy, 1), flat, as_volume(outs[0]), plan, (padded, columns))
        return
    view = swapped(weight, groups)
    flipped.reshape(view.shape)[...] = view
    flat = flipped.reshape(groups, plan.channels // groups, -1)
    rest = (padded, columns, None)
    correlate(xp, as_volume(dy), flat, merge_images(outs[0], 1), back, rest)


def weight_spec(specs: Sequence[Spec], kernel: Any, groups: int) -> Spec:
    """Return the spec of the weight whose gradient comes from (x, dy)."""
    x, dy = specs
    return x.with_shape((dy.shape[-1], *kernel, x.shape[-1] // groups))


def weight_scratch(specs: Sequence[Spec], *, kernel: Any, **attrs: Any) -> list[Spec]:
    """Return the scratch of ``conv_grad_weight``."""
    x, weight = specs[0], weight_spec(specs, kernel, attrs["groups"])
    plan = plan_of(x.shape[1:-1], weight, x.shape[0], attrs)
    dtype, width = x.dtype, plan.outputs // plan.groups
    if plan.depthwise:
        return [*depthwise_scratch(plan, dtype), Spec((plan.depth, plan.channels), dtype)]
    return [*plan.scratch(dtype), Spec((plan.depth, width), dtype),
            Spec((plan.groups, plan.depth, width), dtype)]  # fmt: skip


def weight_kernel(
    xp: Any, ins: Any, outs: Any, scratch: Any, *, kernel: Any, **attrs: Any
) -> None:
    """Run ``conv_grad_weight`` on (x, dy)."""
    x, dy = ins
    plan = plan_of(x.shape[1:-1], Spec.of(outs[0]), x.shape[0], attrs)
    *rest, total = scratch
    if plan.depthwise:
        depthwise_weight(xp, as_volume(x), as_volume(dy), total, plan.window, rest)
        outs[0].reshape(total.shape[::-1])[...] = total.T
        return
    correlate_weight(xp, as_volume(x), merge_images(dy, 1), total, plan, rest)
    outs[0].reshape(plan.groups, -1, plan.depth)[...] = total.transpose(0, 2, 1)
