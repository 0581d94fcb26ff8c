"""Reductions of sliding windows and their adjoints, for pooling and depthwise convolution.

Dimension key: as in `hpctrain.ops.windows`. A *group* is as many whole images as stay in
cache together; a *tap* is one place of the kernel, numbered in memory order.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.ops.windows import Window, crop_images

__all__ = [
    "fill_shares", "group_results", "group_specs", "groups", "index_dtype", "maximum_windows",
    "spread", "spread_specs", "sum_windows", "tap_slices",
]  # fmt: skip


def index_dtype(window: Window) -> np.dtype[Any]:
    """Return the smallest dtype that numbers the taps: uint8, else int32."""
    return np.dtype(np.uint8 if math.prod(window.kernel) <= 256 else np.int32)


def _count(images: int, channels: int, itemsize: int, window: Window) -> int:
    """Return how many images a group has."""
    return min(images, window.images(window.size[2] * channels * itemsize * 4))


def groups(x: Any, window: Window) -> Iterator[slice]:
    """Cut the images of ``x`` (N, D, H, W, C) into groups."""
    count = max(1, _count(x.shape[0], x.shape[4], x.dtype.itemsize, window))
    return (slice(i, min(i + count, x.shape[0])) for i in range(0, x.shape[0], count))


def group_specs(x: Spec, window: Window) -> tuple[Spec, Spec]:
    """Return the specs of a padded group, and of a group reduced along W only (flat)."""
    channels = x.shape[-1]
    count = _count(x.shape[0], channels, x.dtype.itemsize, window)
    depth, height, _ = window.reach
    shape = (count if window.pads else 0, *window.reach, channels)
    return Spec(shape, x.dtype), Spec(
        (count * depth * height * window.out[2] * channels,), x.dtype
    )


def group_results(x: Spec, window: Window) -> Spec:
    """Return the spec of the results of a group (flat)."""
    count = _count(x.shape[0], x.shape[-1], x.dtype.itemsize, window)
    return Spec((count * window.points * x.shape[-1],), x.dtype)


def tap_slices(window: Window) -> Iterator[tuple[slice, ...]]:
    """Yield for each tap where in a padded group its elements are."""
    for at in itertools.product(*map(range, window.kernel)):
        firsts = [t * d for t, d in zip(at, window.dilation, strict=True)]
        axes = zip(firsts, window.out, window.stride, strict=True)
        yield (slice(None), *(slice(t, t + (n - 1) * s + 1, s) for t, n, s in axes))


def _stages(window: Window, order: tuple[int, ...]) -> list[int]:
    """Return the axes along which something is to be reduced, at least one."""
    return [i for i in order if window.kernel[i] > 1] or [order[0]]


def _parts(source: Any, axis: int, window: Window) -> list[Any]:
    """View the elements of each tap along one axis of space."""
    count, stride = window.out[axis], window.stride[axis]
    before = (slice(None),) * (axis + 1)
    return [
        source[(*before, slice(t, t + (count - 1) * stride + 1, stride))]
        for t in range(window.kernel[axis])
    ]


def _thin(source: Any, window: Window) -> Any:
    """View only what windows reach, and along an axis with a kernel of 1 only the results."""
    depth, height, across = window.reach
    source = source[:, :depth, :height, :across]
    for axis in range(3):
        if window.kernel[axis] == 1:
            (source,) = _parts(source, axis, window)
    return source


def maximum_windows(
    xp: Any, source: Any, outs: tuple[Any, Any], window: Window, scratch: Any
) -> None:
    """Write the maximum of each window and the number of its tap into ``outs``.

    ``source`` is a padded group; ``scratch`` two values, two indices, index, mask, flat.
    """
    values, indices, (step, mask) = scratch[:2], scratch[2:4], scratch[4:]
    source, index = _thin(source, window), None
    stages = _stages(window, (2, 1, 0))
    for turn, axis in enumerate(stages):
        parts = _parts(source, axis, window) if window.kernel[axis] > 1 else [source]
        old = None if index is None else _parts(index, axis, window)
        shape, size = parts[0].shape, parts[0].size
        last = turn == len(stages) - 1
        to = outs[0] if last else values[turn % 2][:size].reshape(shape)
        at = outs[1] if last else indices[turn % 2][:size].reshape(shape)
        temporary = [s[:size].reshape(shape) for s in (step, mask)]
        _maximum(xp, parts, old, (to, at), (math.prod(window.kernel[axis + 1 :]), *temporary))
        source, index = to, at


def _maximum(xp: Any, parts: Any, old: Any, outs: Any, rest: Any) -> None:
    """Take the running maximum of ``parts``; taps of part t come after those of part t - 1."""
    (y, index), (scale, step, mask) = outs, rest
    if old is None:
        index[...] = 0
    else:
        index[...] = old[0]
    if len(parts) == 1:
        y[...] = parts[0]
    for t, part in enumerate(parts[1:], 1):
        best = parts[0] if t == 1 else y
        xp.greater(part, best, out=mask)
        xp.maximum(best, part, out=y)
        # The new tap is larger than any before it, so a maximum replaces where it won.
        if old is None:
            xp.multiply(mask, index.dtype.type(t * scale), out=step)
        else:
            xp.add(old[t], index.dtype.type(t * scale), out=step)
            xp.multiply(step, mask, out=step)
        xp.maximum(index, step, out=index)


def sum_windows(xp: Any, source: Any, y: Any, window: Window, scratch: Any) -> None:
    """Write the sum of each window of a padded group into ``y``; scratch: two flat values."""
    source = _thin(source, window)
    stages = _stages(window, (2, 1, 0))
    for turn, axis in enumerate(stages):
        parts = _parts(source, axis, window) if window.kernel[axis] > 1 else [source]
        shape, size = parts[0].shape, parts[0].size
        last = turn == len(stages) - 1
        to = y if last else scratch[turn % 2][:size].reshape(shape)
        if len(parts) == 1:
            to[...] = parts[0]
        for t, part in enumerate(parts[1:], 1):
            xp.add(parts[0] if t == 1 else to, part, out=to)
        source = to


def fill_shares(xp: Any, share: Any, window: Window, include: bool) -> None:
    """Write one over the number of elements of each window, with or without padding."""
    counts = []
    for i in range(3):
        starts = np.arange(window.out[i]) * window.stride[i] - window.before[i]
        stops = np.minimum(starts + window.kernel[i], window.size[i])
        inside = stops - np.maximum(starts, 0)
        counts.append(np.full_like(inside, window.kernel[i]) if include else inside)
    whole = counts[0][:, None, None] * counts[1][:, None] * counts[2]
    share[...] = xp.asarray((1.0 / whole).astype(share.dtype))


def _apart(window: Window) -> bool:
    """Whether no two windows share an element, and none reaches beyond the input."""
    axes = zip(window.stride, window.kernel, window.dilation, strict=True)
    return not window.pads and all(s > (k - 1) * d for s, k, d in axes)


def spread_specs(x: Spec, window: Window) -> list[Spec]:
    """Return the spec of the padded group that `spread` needs."""
    count = _count(x.shape[0], x.shape[-1], x.dtype.itemsize, window)
    return [Spec((0 if _apart(window) else count, *window.reach, x.shape[-1]), x.dtype)]


def spread(
    xp: Any, part: Callable[[slice, int, Any], Any], dx: Any, window: Window, scratch: Any
) -> None:
    """Add up what each window gives to its elements.

    Parameters
    ----------
    part : callable ``(group, tap, out) -> out``
        Writes what the windows of a group give to their tap, (n, D, H, W, C).
    dx : array, shape (N, D, H, W, C)
    scratch : (padded group, results of a group)
    """
    padded, flat = scratch
    apart = _apart(window)
    if not apart or window.size != tuple(
        n * k for n, k in zip(window.out, window.kernel, strict=True)
    ):
        dx[...] = 0
    for some in groups(dx, window):
        target = dx[some] if apart else padded[: some.stop - some.start]
        if not apart:
            target[...] = 0
        for tap, place in enumerate(tap_slices(window)):
            view = target[place]
            if apart:
                part(some, tap, view)
            else:
                term = flat[: view.size].reshape(view.shape)
                xp.add(view, part(some, tap, term), out=view)
        if not apart:
            crop_images(target, dx[some], window)
