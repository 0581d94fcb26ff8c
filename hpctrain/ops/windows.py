"""Windows that slide over space: their geometry, padding, and blocks that stay in cache.

Dimension key: N images, (D, H, W) space (1-D and 2-D get leading lengths of 1), C channels,
channels last.  A *line* is one row of W results; a *block* is a run of consecutive lines.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.errors import ShapeError

__all__ = [
    "BLOCK_BYTES", "Window", "as_volume", "blocks", "crop_images", "merge_images", "pad_images",
    "pairs", "taps", "tuples",
]  # fmt: skip

# Scratch of one block: with its operands it stays in a second-level cache of 2 MiB
# (measured in 2024 on Sapphire Rapids: 0.5-1 MiB is best, 4 MiB doubles the copying).
BLOCK_BYTES = 768 * 1024

Lengths = tuple[int, int, int]


def tuples(value: Any, count: int, where: str) -> tuple[int, ...]:
    """Return one whole number for each of ``count`` axes, from one number or a sequence."""
    if isinstance(value, Sequence):
        if len(value) != count:
            raise ShapeError(f"{where}: got {tuple(value)}, needed {count} numbers")
        return tuple(int(v) for v in value)
    return (int(value),) * count


def pairs(value: Any, count: int, where: str) -> tuple[tuple[int, int], ...]:
    """Return (before, after) for each of ``count`` axes; one number stands for both."""
    if not isinstance(value, Sequence):
        return ((int(value), int(value)),) * count
    if len(value) != count:
        raise ShapeError(f"{where}: got {tuple(value)}, needed {count} numbers or pairs")
    return tuple((int(v), int(v)) if not isinstance(v, Sequence) else (int(v[0]), int(v[1]))
                 for v in value)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Window:
    """How results lie over the input: result o starts at ``o * stride - before``."""

    size: Lengths
    kernel: Lengths
    stride: Lengths
    before: Lengths
    dilation: Lengths
    out: Lengths

    @classmethod
    def make(
        cls, size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any = (1, 1, 1)
    ) -> "Window":
        """Return the window over ``size``, everything extended to three axes."""
        lead = 3 - len(size)
        size, kernel, stride = (1,) * lead + size, (1,) * lead + kernel, (1,) * lead + stride
        padding = ((0, 0),) * lead + padding
        dilation = ((1,) * 3 + dilation)[-3:]
        if min(kernel) < 1 or min(stride) < 1 or min(dilation) < 1:
            raise ShapeError(
                f"window: got kernel {kernel}, stride {stride}, dilation {dilation}, needed "
                "positive numbers"
            )
        axes = zip(size, padding, dilation, kernel, strict=True)
        spans = [n + sum(p) - d * (k - 1) - 1 for n, p, d, k in axes]
        if min(spans) < 0:
            raise ShapeError(
                f"window: got a kernel of {kernel} with dilation {dilation} over {size} with "
                f"padding {padding}, needed a window inside the padded input"
            )
        out = tuple(n // s + 1 for n, s in zip(spans, stride, strict=True))
        return cls(size, kernel, stride, tuple(p[0] for p in padding), dilation, out)

    @property
    def reach(self) -> Lengths:
        """How much of the padded input the windows touch, from its start."""
        parts = zip(self.out, self.stride, self.kernel, self.dilation, strict=True)
        return tuple((o - 1) * s + (k - 1) * d + 1 for o, s, k, d in parts)  # type: ignore[return-value]

    @property
    def pads(self) -> bool:
        """Whether a window reaches beyond the input."""
        reached = zip(self.reach, self.before, self.size, strict=True)
        return any(self.before) or any(r - b > n for r, b, n in reached)

    @property
    def points(self) -> int:
        """Number of results of one image."""
        return math.prod(self.out)

    def images(self, line_bytes: int) -> int:
        """Return how many whole images a block may have, at least 1."""
        return max(1, BLOCK_BYTES // max(1, line_bytes * self.out[0] * self.out[1]))

    def lines(self, line_bytes: int) -> int:
        """Return the largest number of lines in a block of `blocks`."""
        n, d, h = self.images(line_bytes), *self.out[:2]
        return n * d * h if n > 1 else min(d * h, max(1, BLOCK_BYTES // max(1, line_bytes)))


def as_volume(x: Any) -> Any:
    """View (N, *space, C) as (N, D, H, W, C)."""
    return x[(slice(None),) + (None,) * (5 - x.ndim)]


def blocks(window: Window, images: int, line_bytes: int) -> Iterator[tuple[slice, ...]]:
    """Cut ``images`` images of results into blocks of consecutive lines.

    Yields
    ------
    (images, planes, lines) : slices
        Several whole images, else several planes of one image, else lines of one plane.
    """
    whole = slice(None)
    depth, height = window.out[:2]
    for first, last in _runs(images, window.images(line_bytes)):
        some = slice(first, last)
        lines = BLOCK_BYTES // max(1, line_bytes)
        if last - first > 1 or lines >= depth * height:
            yield some, whole, whole
        elif lines >= height:
            for a, b in _runs(depth, lines // height):
                yield some, slice(a, b), whole
        else:
            for d in range(depth):
                for a, b in _runs(height, max(1, lines)):
                    yield some, slice(d, d + 1), slice(a, b)


def _runs(length: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut ``range(length)`` into about equal runs of at most ``most``."""
    count = -(-length // most)
    for i in range(count):
        yield length * i // count, length * (i + 1) // count


def pad_images(x: Any, window: Window, padded: Any) -> Any:
    """Copy some images into the middle of ``padded``, and return the part that they fill.

    ``padded`` is (n, *reach, C) with the border set before; images are cut where the
    windows do not reach, or where the padding is negative.
    """
    part = padded[: x.shape[0]]
    middle, inner = _overlap(window)
    part[middle] = x[inner]
    return part


def crop_images(padded: Any, x: Any, window: Window) -> None:
    """Copy the middle of ``padded`` back to where `pad_images` would take it from."""
    middle, inner = _overlap(window)
    x[inner] = padded[middle]


def _overlap(window: Window) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return what the padded and the plain images share, in the indices of each."""
    middle, inner = [slice(None)], [slice(None)]
    for n, b, reach in zip(window.size, window.before, window.reach, strict=True):
        start = max(b, 0)
        stop = max(start, min(b + n, reach))
        middle.append(slice(start, stop))
        inner.append(slice(start - b, stop - b))
    return tuple(middle), tuple(inner)


def taps(xp: Any, source: Any, window: Window) -> Any:
    """View ``source``, (n, *reach, C), as (n, *out, *kernel, C) without a copy."""
    n, *space, c = source.strides
    shape = (source.shape[0], *window.out, *window.kernel, source.shape[4])
    steps = [a * s for a, s in zip(space, window.stride, strict=True)]
    inner = [a * d for a, d in zip(space, window.dilation, strict=True)]
    return xp.lib.stride_tricks.as_strided(source, shape, (n, *steps, *inner, c))


def merge_images(array: Any, tail: int) -> Any:
    """Return an array with all axes but the last ``tail`` made one: a view if C-contiguous.

    If not, the result is: a product of matrices must not depend on how its factors lie.
    """
    merged = array.reshape(math.prod(array.shape[: array.ndim - tail]), *array.shape[-tail:])
    return merged if merged.flags.c_contiguous else merged.copy()
