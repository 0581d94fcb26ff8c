"""Gradients whose bits do not depend on the number of ranks.

A global batch is cut into *virtual shards* of a few samples, and a rank computes whole shards,
one after the other. So every product sums over the samples of one shard, wherever that is
computed, and only the sums over shards depend on who computes what. These are made in twice
the precision and rounded at the end: sums of a few dozen numbers in float32 are then exact,
unless the numbers differ by a factor of more than about 2**20, and the order cannot matter.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpctrain.backend import CPU
from hpctrain.errors import ConfigError
from hpctrain.graph.plan import Plan
from hpctrain.parallel.flat import FlatParameters, Slice
from hpctrain.parallel.later import Later
from hpctrain.parallel.together import made_up
from hpctrain.parallel.work import Work

__all__ = ["Sums", "cut_work", "parts_of_step"]


def parts_of_step(batches: Sequence[Work], shard: int, silent: bool = False) -> list[Work]:
    """Return what this rank computes for one step on all ``batches``, one part after the other.

    Parameters
    ----------
    batches : sequence of Work
        Each with the counts and rows of its own global batch.
    shard : int
        As for `cut_work`.
    silent : bool
        Of a batch of which it has no sample, run a sample made up: others need its messages.

    Returns
    -------
    list of Work
        Unless ``silent``, without those of no sample. Counts and rows are those of one batch
        of all samples, in the order of the batches: so gradients have the right weights, and
        random draws are those of that one batch.

    Raises
    ------
    ConfigError
        If ranks share statistics of a batch and are to cut it.
    """
    if shard and silent:
        raise ConfigError(
            "shards: batch statistics are over all ranks, but shards are computed one after "
            "the other; use no shards, or layers with statistics of their own"
        )
    total = sum(work.global_count for work in batches)
    found, before = [], 0
    for work in batches:
        if work.count or silent:
            work = work if work.count else made_up(work)
            found += [
                replace(piece, global_count=total, row=before + piece.row)
                for piece in cut_work(work, shard)
            ]
        before += work.global_count
    return found


def cut_work(work: Work, shard: int) -> list[Work]:
    """Cut the part of a rank into virtual shards of ``shard`` samples.

    Parameters
    ----------
    work : Work
        Its first sample must begin a shard.
    shard : int
        Samples of a shard; 0 for no cutting. Axis 0 of the arrays counts samples.

    Raises
    ------
    ConfigError
        If ``work`` begins inside a shard.
    """
    if not shard:
        return [work]
    if work.row % shard:
        raise ConfigError(
            f"shards: this rank begins at sample {work.row} of the batch, needed a multiple of "
            f"{shard}; divide batches by io.sampler.part with unit={shard}"
        )
    return [
        Work(
            [a[start : start + shard] for a in work.inputs],
            [a[start : start + shard] for a in work.targets],
            min(shard, work.count - start),
            work.global_count,
            work.row + start,
            work.variable,
        )
        for start in range(0, work.count, shard)
    ]


class Sums:
    """Sums of gradients over the parts of a step: virtual shards, or batches accumulated.

    Parameters
    ----------
    flat : FlatParameters
        Its gradient buffer holds the gradient of one part.
    dtype : dtype
        Of the sums: float64 for shards.
    buffer : array, shape (total,), optional
        Where they are to lie.
    compiled : bool
        Whether some gradients may be made of all parts at once: see `hpctrain.parallel.later`.

    Attributes
    ----------
    buffer : array, shape (total,)
        What is exchanged.
    later : Later or None
        What keeps the factors of such gradients.
    """

    def __init__(
        self,
        flat: FlatParameters,
        dtype: Any = np.float64,
        buffer: Any = None,
        compiled: bool = False,
    ) -> None:
        self._flat = flat
        zeros = flat.device.module.zeros
        self.buffer: Any = zeros(flat.total, dtype) if buffer is None else buffer

        self.later = Later(flat, self.buffer) if compiled and flat.device == CPU else None

    def adopt(self, plan: Plan) -> tuple[Plan, Collection[int]]:
        """Let a part keep the factors of gradients that are made of all parts at once.

        Returns
        -------
        plan : Plan
        kept : collection of int
            The parameters whose gradients these are.
        """
        if self.later is None:
            return plan, ()
        graph, kept = self.later.adopt(plan.graph)
        return replace(plan, graph=graph), kept

    def add(self, piece: Slice, first: bool, kept: Collection[int] = ()) -> None:
        """Add the gradient of one part; the first one of a step begins the sum.

        But for that of the parameters ``kept``, of which there are factors so far.
        """
        whole = [(piece.start, piece.stop, False)]
        for start, stop, empty in self.later.runs(piece, kept) if self.later else whole:
            sums: Any = self.buffer[start:stop]
            if empty:
                if first:
                    sums[...] = 0
            elif first:
                sums[...] = self._flat.grads[start:stop]
            else:
                sums += self._flat.grads[start:stop]

    def close(self, piece: Slice) -> None:
        """Add what is made of all parts at once."""
        if self.later is not None:
            self.later.add(piece)

    def settle(self, piece: Slice) -> None:
        """Round the sum over all ranks into the gradient buffer."""
        self._flat.grads[piece.start : piece.stop] = self.buffer[piece.start : piece.stop]
