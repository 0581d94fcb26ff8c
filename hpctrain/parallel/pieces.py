"""Evaluating a batch in pieces, one after the other, so that it takes little memory.

The values of neighbouring layers are in use at the same time, so that a network of few layers
needs a large part of all its values at once, however well they share memory. Samples do not
meet in inference: fewer at a time give the same numbers in less memory.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from hpctrain.autograd import Spec
from hpctrain.errors import ConfigError

__all__ = ["NAIVE_SHARE", "of_samples", "pieces"]

NAIVE_SHARE = 0.25  # Chen et al., "MXNet" (2015), section 4: deep networks in inference


class Planned(Protocol):
    """A plan, as far as its memory goes."""

    @property
    def arena_bytes(self) -> int:
        """Bytes that it takes."""

    @property
    def naive_bytes(self) -> int:
        """Bytes that it would take if no values shared memory."""


def pieces(
    plan_of: Callable[[int], Planned],
    batch: int,
    naive_share: float = NAIVE_SHARE,
    budget_bytes: int = 0,
) -> int:
    """Return in how many pieces to evaluate a batch: as few as use little enough memory.

    Parameters
    ----------
    plan_of : callable
        From a number of samples to the plan of their evaluation.
    batch : int
        Samples, at least 1.
    naive_share : float
        Part that the arena of a piece may have of what the whole batch would take if no
        values shared memory.
    budget_bytes : int
        That it may have besides, 0 for no limit.

    Returns
    -------
    int
        A piece has ``ceil(batch / pieces)`` samples, the last one what is left.

    Raises
    ------
    ConfigError
        If a single sample takes more than the budget.

    Notes
    -----
    The share is a wish: if even single samples take more, as in small batches and where most
    of the memory has nothing to do with samples, there are as few pieces as the budget allows.

    Cost: a plan of the whole batch, and one for each size tried, two for each doubling.
    """
    naive, fitting, least = plan_of(batch).naive_bytes, 0, 0
    for size in _sizes(batch):
        least = plan_of(size).arena_bytes
        if budget_bytes and least > budget_bytes:
            continue
        if least <= naive_share * naive:
            return -(-batch // size)
        fitting = fitting or size
    if not fitting:
        raise ConfigError(
            f"memory.budget: got {budget_bytes // 2**10} KiB, but the values of an evaluation "
            f"take {-(-least // 2**10)} KiB with one record at a time; raise the budget"
        )
    return -(-batch // fitting)


def _sizes(batch: int) -> Iterator[int]:
    """Yield sizes of 1, 2, 3, 4, 6, 8, 12, ... pieces, at last single samples."""
    last, low = 0, 1
    while low < 2 * batch:
        for count in (low, low + low // 2):
            size = -(-batch // count)
            if size != last:
                yield size
            last = size
        low *= 2


def of_samples(specs: Sequence[Spec], samples: int, axis: int = 0) -> tuple[Spec, ...]:
    """Return the specs with another number of samples along ``axis``."""
    return tuple(Spec((*s.shape[:axis], samples, *s.shape[axis + 1 :]), s.dtype) for s in specs)
