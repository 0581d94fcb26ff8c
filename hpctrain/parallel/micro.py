"""Micro-batches: the parts of a batch that go through a pipeline one after the other."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpctrain.backend import module_of
from hpctrain.io.sampler import part
from hpctrain.parallel.shards import parts_of_step
from hpctrain.parallel.together import made_up
from hpctrain.parallel.work import Work

__all__ = ["micro_batches", "micros_of_step", "most_samples"]


def micros_of_step(
    batches: Sequence[Work], count: int, batch_axis: int = 0, shard: int = 0, replicas: int = 0
) -> list[Work]:
    """Return the micro-batches of a step, of one batch after the other.

    Parameters
    ----------
    batches : sequence of Work
        The share of this replica; each with the counts and rows of its own global batch.
    count, batch_axis
        See `micro_batches`.
    shard : int
        Take virtual shards of so many samples instead: see `hpctrain.parallel.shards`.
    replicas : int
        How many there are, if they take statistics together: then all have as many
        micro-batches of each batch as the largest, and those of no sample are made up.
    """
    parts = parts_of_step(batches, shard, silent=replicas > 0)
    if shard:
        return parts
    if not replicas:
        return [micro for work in parts for micro in micro_batches(work, count, batch_axis)]
    found = []
    for batch, work in zip(batches, parts, strict=True):
        mine = micro_batches(work, count, batch_axis)
        nothing = slice(work.count, work.count)
        empty = replace(
            work,
            inputs=_cut(work.inputs, nothing, batch_axis),
            targets=_cut(work.targets, nothing, batch_axis),
            count=0,
            row=work.row + work.count,
        )
        most = min(count, -(-batch.global_count // replicas))
        found += mine + [made_up(empty)] * (most - len(mine))
    return found


def micro_batches(work: Work, count: int, batch_axis: int = 0) -> list[Work]:
    """Cut the part of a replica into micro-batches.

    Parameters
    ----------
    work : Work
    count : int
        As many, or one for each sample if there are fewer.
    batch_axis : int
        The axis of the arrays that counts samples; arrays of fewer axes have them on the
        first.

    Returns
    -------
    list of Work
        Their sizes differ by one at most, the larger ones first. Rows are those of the global
        batch, so that random draws do not depend on the cut. Views, if the axis is the first.
    """
    pieces = min(count, work.count)
    found = []
    for number in range(pieces):
        place = part(work.count, number, pieces)
        found.append(
            replace(
                work,
                inputs=_cut(work.inputs, place, batch_axis),
                targets=_cut(work.targets, place, batch_axis),
                count=place.stop - place.start,
                row=work.row + place.start,
            )
        )
    return found


def most_samples(samples: int, count: int) -> int:
    """Return the samples of the largest micro-batch."""
    return -(-samples // min(count, max(1, samples)))


def _cut(arrays: Sequence[Any], place: slice, axis: int) -> list[Any]:
    found = []
    for array in arrays:
        at = axis if axis < array.ndim else 0
        piece = array[(slice(None),) * at + (place,)]
        found.append(module_of(piece).ascontiguousarray(piece))
    return found
