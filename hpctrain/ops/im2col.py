"""Convolution as matrix products: kernels over blocks of columns that stay in cache.

Each block of results takes its windows out of the (padded) input into a matrix of columns,
(rows, K) with K = KD KH KW C/G in the order of the weight, and multiplies once, straight into
the result.  Dimension key: as in `hpctrain.ops.windows`; O outputs, G groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.ops.windows import (
    Window,
    as_volume,
    blocks,
    crop_images,
    merge_images,
    pad_images,
    taps,
)

__all__ = ["Plan", "correlate", "correlate_weight", "scatter", "swapped"]

# A run of at most this many elements is copied line by line instead, into the transposed
# columns: a short run costs as much as its loop does.
SHORT_RUN = 6


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one convolution, from shapes alone."""

    window: Window
    images: int
    channels: int
    outputs: int
    groups: int
    itemsize: int

    @property
    def depth(self) -> int:
        """K, the number of products in a result."""
        kd, kh, kw = self.window.kernel
        return kd * kh * kw * (self.channels // self.groups)

    @property
    def line_bytes(self) -> int:
        """Columns of one line."""
        return self.window.out[2] * self.depth * self.itemsize

    @property
    def direct(self) -> bool:
        """Whether the input itself is the matrix of columns."""
        one = (1, 1, 1)
        window = self.window
        plain = window.kernel == one and window.stride == one and window.out == window.size
        return plain and not window.pads and self.groups == 1

    @property
    def depthwise(self) -> bool:
        """Whether each channel makes one output by itself."""
        return self.groups == self.channels == self.outputs > 1

    @property
    def transposed(self) -> bool:
        """Whether columns are stored K first."""
        run = self.window.kernel[2] * (self.channels // self.groups)
        return run <= SHORT_RUN and self.window.out[2] > run

    @property
    def padded(self) -> tuple[int, ...]:
        """Shape of the padded images of one block."""
        some = min(self.images, self.window.images(self.line_bytes))
        return (some, *self.window.reach, self.channels)

    @property
    def columns(self) -> int:
        """Number of elements of the columns of one block."""
        rows = min(self.window.lines(self.line_bytes), self.images * self.window.points)
        return rows * self.window.out[2] * self.depth

    def scratch(self, dtype: Any) -> list[Spec]:
        """Return the specs of the padded images and of the columns."""
        padded = self.padded if self.window.pads else (0,)
        return [Spec(padded, dtype), Spec((0 if self.direct else self.columns,), dtype)]


def correlate(xp: Any, x: Any, weight: Any, y: Any, plan: Plan, scratch: Any) -> None:
    """Write the convolution of ``x`` with ``weight`` into ``y``.

    Parameters
    ----------
    x : array, shape (N, D, H, W, C), any strides
    weight : array, shape (G, O/G, K)
    y : array, shape (N D H W, O), rows contiguous
    scratch : (padded, columns, bias of a line (W O,) or None)
    """
    padded, columns, bias = scratch
    width = weight.shape[1]
    for group, rows, cols in _columns(xp, x, plan, (padded, columns)):
        part = y[rows, group * width : (group + 1) * width]
        xp.matmul(cols, weight[group].T, out=part)
        if bias is not None and group == plan.groups - 1:
            lines = y[rows].reshape(-1, bias.size)  # long rows: NumPy's inner loop is fast
            xp.add(lines, bias, out=lines)


def correlate_weight(xp: Any, x: Any, dy: Any, total: Any, plan: Plan, scratch: Any) -> None:
    """Write the sum over all results of columns times cotangent into ``total``.

    Parameters
    ----------
    x : array, shape (N, D, H, W, C)
    dy : array, shape (N D H W, O)
    total : array, shape (G, K, O/G)
    scratch : (padded, columns, product (K, O/G))
    """
    *scratch, product = scratch
    width = total.shape[2]
    total[...] = 0
    for group, rows, cols in _columns(xp, x, plan, scratch):
        xp.matmul(cols.T, dy[rows, group * width : (group + 1) * width], out=product)
        xp.add(total[group], product, out=total[group])


def scatter(xp: Any, dy: Any, weight: Any, dx: Any, plan: Plan, scratch: Any) -> None:
    """Write the sum of all windows, each ``weight`` times its cotangent, into ``dx``.

    Parameters
    ----------
    dy : array, shape (N D H W, O)
    weight : array, shape (G, O/G, K)
    dx : array, shape (N, D, H, W, C)
    scratch : (padded, columns)
    """
    padded, columns = scratch
    window, width, inner = plan.window, weight.shape[1], plan.channels // plan.groups
    if min(window.reach[i] - window.before[i] - window.size[i] for i in range(3)) < 0:
        dx[...] = 0
    for some, planes, lines in blocks(window, plan.images, plan.line_bytes):
        images = some.stop - some.start
        part = padded[:images]
        if planes.start in (None, 0) and lines.start in (None, 0):
            part[...] = 0
        rows, shape = _rows(plan, some, planes, lines)
        count = rows.stop - rows.start
        for group in range(plan.groups):
            cols = columns[: count * plan.depth].reshape(count, plan.depth)
            pulled = dy[rows, group * width : (group + 1) * width]
            xp.matmul(pulled, weight[group], out=cols)
            target = part[..., group * inner : (group + 1) * inner]
            _add_taps(xp, cols.reshape(*shape, *window.kernel, inner), target, window,
                      (planes.start or 0, lines.start or 0))  # fmt: skip
        if planes.stop in (None, window.out[0]) and lines.stop in (None, window.out[1]):
            crop_images(part, dx[some], window)


def swapped(weight: Any, groups: int) -> Any:
    """View a weight (O, *kernel, C/G) flipped in space as (G, C/G, KD, KH, KW, O/G)."""
    volume = as_volume(weight)[:, ::-1, ::-1, ::-1]
    grouped = volume.reshape(groups, -1, *volume.shape[1:])
    return grouped.transpose(0, 5, 2, 3, 4, 1)


def _rows(plan: Plan, some: slice, planes: slice, lines: slice) -> tuple[slice, Any]:
    """Return the rows of a block in the matrix of results, and its shape in space."""
    depth, height, across = plan.window.out
    d0, d1, _ = planes.indices(depth)
    h0, h1, _ = lines.indices(height)
    shape = (some.stop - some.start, d1 - d0, h1 - h0, across)
    start = ((some.start * depth + d0) * height + h0) * across
    return slice(start, start + shape[0] * shape[1] * shape[2] * across), shape


def _columns(xp: Any, x: Any, plan: Plan, scratch: Any) -> Iterator[tuple[int, slice, Any]]:
    """Yield (group, rows of the result, columns) of each block."""
    padded, columns = scratch
    window, inner = plan.window, plan.channels // plan.groups
    if plan.direct:
        yield 0, slice(0, plan.images * window.points), merge_images(x, 1)
        return
    if window.pads:
        padded[...] = 0
    every = taps(xp, padded if window.pads else x, window)  # one view: making it costs 15 µs
    for some, planes, lines in blocks(window, plan.images, plan.line_bytes):
        view = every[some]
        if window.pads:
            view = every[: some.stop - some.start]
            if planes.start in (None, 0) and lines.start in (None, 0):
                pad_images(x[some], window, padded)
        rows, shape = _rows(plan, some, planes, lines)
        count = rows.stop - rows.start
        block = columns[: count * plan.depth]
        for group in range(plan.groups):
            part = view[:, planes, lines, ..., group * inner : (group + 1) * inner]
            if plan.transposed:
                order = block.reshape(*window.kernel, inner, *shape)
                order[...] = part.transpose(4, 5, 6, 7, 0, 1, 2, 3)
                yield group, rows, block.reshape(plan.depth, count).T
            else:
                block.reshape(*shape, *window.kernel, inner)[...] = part
                yield group, rows, block.reshape(count, plan.depth)


def _add_taps(xp: Any, cols: Any, target: Any, window: Window, at: tuple[int, int]) -> None:
    """Add columns (n, d, h, w, KD, KH, KW, C) to the padded images ``target``."""
    starts = (at[0] * window.stride[0], at[1] * window.stride[1], 0)
    for i in range(window.kernel[0]):
        for j in range(window.kernel[1]):
            for k in range(window.kernel[2]):
                place = tuple(
                    slice(a + t * d, a + t * d + (n - 1) * s + 1, s)
                    for a, t, d, n, s in zip(
                        starts, (i, j, k), window.dilation, cols.shape[1:4], window.stride,
                        strict=True,
                    )
                )  # fmt: skip
                part = target[(slice(None), *place)]
                xp.add(part, cols[:, :, :, :, i, j, k], out=part)
