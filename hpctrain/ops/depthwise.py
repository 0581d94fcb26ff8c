"""Depthwise convolution: every channel by itself, tap after tap, without matrices.

Dimension key: as in `hpctrain.ops.slide`; K taps. A weight is taken as (C, K). A *row* is one
tap's weight repeated along a line of W results, so that NumPy's inner loop is a whole line.
"""

from typing import Any

from hpctrain.autograd import Spec
from hpctrain.ops.im2col import Plan
from hpctrain.ops.slide import (
    group_results,
    group_specs,
    groups,
    spread,
    spread_specs,
    tap_slices,
)
from hpctrain.ops.windows import Window, pad_images

__all__ = [
    "depthwise", "depthwise_data", "depthwise_data_scratch", "depthwise_scratch",
    "depthwise_weight",
]  # fmt: skip


def depthwise_scratch(plan: Plan, dtype: Any) -> list[Spec]:
    """Return the specs of a padded group, of its results, and of a row."""
    x = Spec((plan.images, *plan.window.size, plan.channels), dtype)
    row = Spec((plan.window.out[2] * plan.channels,), dtype)
    return [group_specs(x, plan.window)[0], group_results(x, plan.window), row]


def depthwise_data_scratch(plan: Plan, dtype: Any) -> list[Spec]:
    """Return the same for the gradient of the input."""
    x = Spec((plan.images, *plan.window.size, plan.channels), dtype)
    _, results, row = depthwise_scratch(plan, dtype)
    return [*spread_specs(x, plan.window), results, row]


def depthwise(xp: Any, x: Any, weight: Any, y: Any, window: Window, scratch: Any) -> None:
    """Write the convolution of ``x``, (N, D, H, W, C), into ``y``."""
    padded, flat, row = scratch
    padded[...] = 0
    for some in groups(x, window):
        source = pad_images(x[some], window, padded) if window.pads else x[some]
        out = y[some]
        term = flat[: out.size].reshape(out.shape)
        for tap, place in enumerate(tap_slices(window)):
            factor = _row(row, weight[:, tap])
            if tap:
                xp.add(out, xp.multiply(source[place], factor, out=term), out=out)
            else:
                xp.multiply(source[place], factor, out=out)


def depthwise_data(
    xp: Any, dy: Any, weight: Any, dx: Any, window: Window, scratch: Any
) -> None:
    """Write the adjoint of the convolution of ``dy`` into ``dx``."""
    padded, flat, row = scratch

    def part(some: slice, tap: int, out: Any) -> Any:
        return xp.multiply(dy[some], _row(row, weight[:, tap]), out=out)

    spread(xp, part, dx, window, (padded, flat))


def depthwise_weight(
    xp: Any, x: Any, dy: Any, total: Any, window: Window, scratch: Any
) -> None:
    """Write for each tap the sum of its elements times ``dy`` into ``total``, (K, C)."""
    padded, flat, row = scratch
    padded[...] = 0
    total[...] = 0
    for some in groups(x, window):
        source = pad_images(x[some], window, padded) if window.pads else x[some]
        pulled = dy[some]
        term = flat[: pulled.size].reshape(pulled.shape)
        for tap, place in enumerate(tap_slices(window)):
            xp.multiply(source[place], pulled, out=term)
            xp.add.reduce(term.reshape(-1, row.size), axis=0, out=row)
            total[tap] += xp.add.reduce(row.reshape(-1, total.shape[1]), axis=0)


def _row(row: Any, weight: Any) -> Any:
    """Repeat the weight of a tap along a line, and return it as (W, C)."""
    wide = row.reshape(-1, weight.size)
    wide[...] = weight
    return wide
