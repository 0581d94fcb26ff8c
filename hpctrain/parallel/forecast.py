"""What a step will take, and the best order of its exchange, from times that were measured."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.comm.schedule import backward_order, best_order
from hpctrain.comm.simulate import simulate
from hpctrain.comm.timeline import Link, Piece, Step, Stretch, Timeline
from hpctrain.graph.segments import Segment
from hpctrain.parallel.meter import Meter, mean_seconds

__all__ = ["Forecast", "forecast", "step_of"]


@dataclass(frozen=True, slots=True)
class Forecast:
    """A step in numbers, the same on all ranks.

    Attributes
    ----------
    step : Step
    link : Link
    order : tuple of int
        The best order found.
    """

    step: Step
    link: Link
    order: tuple[int, ...]

    def timeline(self, order: Sequence[int] | None = None) -> Timeline:
        """Simulate the step by an order, or by the best."""
        return simulate(self.step, self.link, self.order if order is None else order)

    @property
    def backward(self) -> tuple[int, ...]:
        """The order in which slices become final."""
        return backward_order(self.step)


def forecast(
    group: Group,
    segments: Sequence[Segment],
    sizes: Sequence[int],
    meter: Meter,
    link: Link,
) -> Forecast:
    """Plan the exchange by the times measured so far; collective.

    Parameters
    ----------
    group : Group
        The ranks; the slowest of them counts for each segment.
    segments : sequence of Segment
        If another rank has another number of them, those of rank 0 count.
    sizes : sequence of int
        Bytes that a rank sends for each slice.
    meter : Meter
    link : Link
    """
    rows, sizes = group.bcast_obj([[[s.reads, s.final] for s in segments], list(sizes)], 0)
    seconds = mean_seconds(meter.seconds, len(rows))
    updates = mean_seconds(meter.updates, len(sizes))
    if group.size > 1:
        group.allreduce(seconds, "max")
        group.allreduce(updates, "max")
    step = step_of(rows, sizes, seconds, updates)
    return Forecast(step, link, best_order(step, link))


def step_of(
    rows: Sequence[Sequence[Sequence[int]]],
    sizes: Sequence[int],
    seconds: np.ndarray,
    updates: np.ndarray,
) -> Step:
    """Return a step as the simulator takes it.

    Parameters
    ----------
    rows : sequence of (reads, final)
        Slices of the parameters that a segment reads, and of the gradient that it ends.
    sizes : sequence of int
        Bytes on the wire of each slice.
    seconds, updates : array
        Times of the segments, and of the updates of the slices.

    Notes
    -----
    Slices that no segment ends hold padding only, and are ready when the first has run; the
    slice with the riders is ready when the last has.
    """
    final = [set(row[1]) - {0} for row in rows]
    final[0] |= set(range(1, len(sizes))) - set().union(*final)
    final[-1] |= {0}
    stretches = tuple(
        Stretch(float(t), tuple(row[0]), tuple(sorted(f)))
        for row, t, f in zip(rows, seconds, final, strict=True)
    )
    pieces = (Piece(n, float(u)) for n, u in zip(sizes, updates, strict=True))
    return Step(stretches, tuple(pieces))
