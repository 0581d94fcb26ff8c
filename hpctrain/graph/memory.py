"""The memory planner: lifetimes in, offsets in one arena out. It knows no arrays.

A *storage* is a piece of memory; several values may share one (views, in-place results).
Its lifetime is the span of steps from its first write to its last use, both inclusive.

``t``: number of a step; ``n``: number of storages.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ALIGNMENT", "Layout", "Lifetime", "lower_bound", "place"]

ALIGNMENT = 64  # bytes: a cache line, and the width of an AVX-512 register


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A storage of ``nbytes`` that is in use from step ``first`` to step ``last``."""

    nbytes: int
    first: int
    last: int

    def overlaps(self, other: "Lifetime") -> bool:
        """Return whether both are in use at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes, one for each storage, and the size of the arena."""

    offsets: tuple[int, ...]
    nbytes: int


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def place(lifetimes: Sequence[Lifetime]) -> Layout:
    """Choose offsets such that storages in use at the same step do not overlap.

    Parameters
    ----------
    lifetimes : sequence of Lifetime

    Returns
    -------
    Layout
        Offsets are multiples of `ALIGNMENT`.

    Notes
    -----
    Greedy by size: the largest first, each into the smallest gap that fits among those
    placed already. Cost n² in the worst case.

    References
    ----------
    Pisarchyk and Lee, "Efficient memory management for deep neural net inference",
    MLSys workshop 2020.
    """
    offsets = [0] * len(lifetimes)
    placed: list[tuple[int, int, Lifetime]] = []  # offset, end, lifetime; by offset
    total = 0
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].nbytes, i))
    for i in order:
        size = _rounded(lifetimes[i].nbytes)
        offset = _smallest_gap([p for p in placed if p[2].overlaps(lifetimes[i])], size)
        offsets[i] = offset
        bisect.insort(placed, (offset, offset + size, lifetimes[i]), key=lambda p: p[0])
        total = max(total, offset + size)
    return Layout(tuple(offsets), total)


def _smallest_gap(taken: Sequence[tuple[int, int, Lifetime]], size: int) -> int:
    """Return where ``size`` bytes fit best between ``taken``, which is sorted by offset."""
    best, best_gap, reach = -1, 0, 0
    for start, end, _ in taken:
        gap = start - reach
        if gap >= size and (best < 0 or gap < best_gap):
            best, best_gap = reach, gap
        reach = max(reach, end)
    return best if best >= 0 else reach


def lower_bound(lifetimes: Sequence[Lifetime]) -> int:
    """Return the bytes in use at the busiest step: no layout can be smaller.

    Examples
    --------
    >>> lower_bound([Lifetime(64, 0, 1), Lifetime(128, 1, 2), Lifetime(64, 2, 3)])
    192
    """
    changes: dict[int, int] = {}
    for life in lifetimes:
        size = _rounded(life.nbytes)
        changes[life.first] = changes.get(life.first, 0) + size
        changes[life.last + 1] = changes.get(life.last + 1, 0) - size
    level = peak = 0
    for step in sorted(changes):
        level += changes[step]
        peak = max(peak, level)
    return peak
