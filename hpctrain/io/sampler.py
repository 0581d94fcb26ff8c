"""In which order an epoch goes through the records, and which of them a rank takes.

Everything here is pure: the order follows from the seed, the epoch and the layout of the
data, never from the number of ranks, so a run goes on with the very next batch on any
number of them.  No record is dropped or repeated; the last batch may be short.

Data that fit into the *window* are shuffled freely.  Larger data are shuffled in *grains*
of records that are read together: first the grains, then the records within each stretch of
grains.  The epoch is then cut into *streams* that each feed a fixed part of every batch:

    batch t  =  | stream 0: next b₀ records | stream 1: next b₁ | … | stream s-1 |

A rank takes consecutive places of the batch, so it follows its own streams only and reads
its own share of the data, not all of it.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hpctrain.errors import ConfigError

__all__ = ["EpochPlan", "Plan", "deal", "epoch_order", "part", "stream_count"]

Ids = npt.NDArray[np.int64]
WINDOW = 65536
MAX_STREAMS = 64
SHUFFLE = 1  # first word of the spawn key: a purpose has its own random numbers


def epoch_order(n: int, seed: int, epoch: int, grain: int = 1, window: int = WINDOW) -> Ids:
    """Return the order of one epoch.

    Parameters
    ----------
    n : int
        Number of records.
    seed, epoch : int
        Not negative; each pair has its own order.
    grain : int
        Records that are read together.
    window : int
        Records among which the order is free; at least ``grain`` is taken.

    Returns
    -------
    ndarray, shape (n,), int64
        A permutation of ``0 … n - 1``; each is equally likely if ``n <= window`` or
        ``grain`` is 1.

    Notes
    -----
    8 n bytes on every rank.

    Examples
    --------
    >>> sorted(epoch_order(5, seed=1, epoch=0).tolist())
    [0, 1, 2, 3, 4]
    """
    random = np.random.Generator(
        np.random.Philox(np.random.SeedSequence(seed, spawn_key=(SHUFFLE, epoch)))
    )
    if n <= window or grain == 1:
        return random.permutation(n).astype(np.int64, copy=False)
    firsts = random.permutation(-(-n // grain)) * grain
    order = (firsts[:, None] + np.arange(grain)).ravel()
    order = order[order < n]
    stretch = max(1, window // grain) * grain
    for start in range(0, n, stretch):
        random.shuffle(order[start : start + stretch])
    return order


def stream_count(n: int, batch: int, grain: int, window: int) -> int:
    """Return how many streams feed each batch; 1 where the order is free.

    As many as have room for one grain in the window at once, at most 64.
    """
    if n <= window or grain == 1:
        return 1
    return max(1, min(MAX_STREAMS, window // grain, batch))


def deal(order: Ids, batch: int, streams: int) -> Ids:
    """Rearrange an order so that each batch takes the next records of every stream.

    Parameters
    ----------
    order : ndarray, shape (n,), int64
        Cut into ``streams`` consecutive pieces; what fills no batch stays at the end.
    batch : int
        Records of a batch.
    streams : int
        At most ``batch``.

    Examples
    --------
    >>> deal(np.arange(9), batch=4, streams=2).tolist()
    [0, 1, 4, 5, 2, 3, 6, 7, 8]
    """
    steps = len(order) // batch
    if streams == 1 or steps < 2:
        return order
    dealt = np.empty_like(order)
    dealt[steps * batch :] = order[steps * batch :]
    table = dealt[: steps * batch].reshape(steps, batch)
    for stream in range(streams):
        places = part(batch, stream, streams)
        width = places.stop - places.start
        piece = order[places.start * steps : places.stop * steps]
        table[:, places] = piece.reshape(steps, width)
    return dealt


def part(batch_records: int, rank: int, size: int, unit: int = 1) -> slice:
    """Return the places of a batch that a rank takes.

    Parameters
    ----------
    batch_records : int
        Records of the global batch; the last one of an epoch may be short.
    rank, size : int
        This rank and the number of ranks that share the batch.
    unit : int
        Records that stay together: each rank begins at a multiple of it.

    Returns
    -------
    slice
        Consecutive places; the ranks' counts differ by at most one unit, and some are 0 where
        there are fewer units than ranks.

    Examples
    --------
    >>> [part(7, rank, 3) for rank in range(3)]
    [slice(0, 3, None), slice(3, 5, None), slice(5, 7, None)]
    >>> [part(7, rank, 3, unit=2) for rank in range(3)]
    [slice(0, 4, None), slice(4, 6, None), slice(6, 7, None)]
    """
    if not 0 <= rank < size:
        raise ConfigError(f"part: rank {rank} is outside a group of {size} ranks")
    least, extra = divmod(-(-batch_records // unit), size)
    start = rank * least + min(rank, extra)
    stop = start + least + (rank < extra)
    return slice(min(start * unit, batch_records), min(stop * unit, batch_records))


@dataclass(frozen=True)
class EpochPlan:
    """The batches of one epoch, made by `Plan.epoch`."""

    plan: "Plan"
    epoch: int

    @property
    def steps(self) -> int:
        """Number of batches."""
        return self.plan.steps

    @cached_property
    def order(self) -> Ids:
        """All records in the order of this epoch, shape (n,), int64."""
        plan = self.plan
        if not plan.shuffle:
            return np.arange(plan.n, dtype=np.int64)
        streams = stream_count(plan.n, plan.batch, plan.grain, plan.window)
        order = epoch_order(plan.n, plan.seed, self.epoch, plan.grain, plan.window // streams)
        return deal(order, plan.batch, streams)

    def batch(self, step: int, rank: int = 0, size: int = 1, unit: int = 1) -> tuple[Ids, int]:
        """Return this rank's records of a batch, and how many all ranks have together.

        Parameters
        ----------
        step, rank, size : int
        unit : int
            Records that stay together, as in `part`.

        Returns
        -------
        ids : ndarray, shape (count,), int64
            May be empty.
        global_count : int
            Weights by it are right also where the ranks have different counts.
        """
        if not 0 <= step < self.steps:
            raise ConfigError(
                f"plan: got step {step} of epoch {self.epoch}, needed 0 to {self.steps - 1}"
            )
        ids = self.order[step * self.plan.batch : (step + 1) * self.plan.batch]
        return ids[part(len(ids), rank, size, unit)], len(ids)


@dataclass(frozen=True, slots=True)
class Plan:
    """How epochs are cut into global batches.

    Parameters
    ----------
    n : int
        Number of records.
    batch : int
        Records of a global batch, over all ranks.
    seed : int
        Of the shuffle.
    grain, window : int
        As in `epoch_order`; ``Records`` knows them.
    shuffle : bool
        False goes through the records as they are stored.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    n: int
    batch: int
    seed: int = 0
    grain: int = 1
    window: int = WINDOW
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name, least in (("n", 0), ("batch", 1), ("seed", 0), ("grain", 1), ("window", 1)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"plan: got {name} = {value}, needed at least {least}")

    @property
    def steps(self) -> int:
        """Number of batches in an epoch, the last one perhaps short."""
        return -(-self.n // self.batch)

    def epoch(self, epoch: int) -> EpochPlan:
        """Return the batches of one epoch; a position in training is (epoch, step)."""
        return EpochPlan(self, epoch)
