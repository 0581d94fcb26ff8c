"""How long a pipeline stands still: measured, and what the times of its parts let expect."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.parallel.pipeline_times import Span, Times, simulate
from hpctrain.parallel.staged import Layout

__all__ = ["Bubble", "bubble_of", "summary"]


@dataclass(frozen=True, slots=True)
class Bubble:
    """Shares of the time in which ranks of a pipeline do nothing.

    Attributes
    ----------
    share : float
        Measured, over all ranks, from the first action of any rank to the last.
    step_s : float
        Mean seconds from the first to the last action of a step.
    times : Times
        Mean seconds of the parts of each stage.
    layout : Layout
    micro_batches : int
        Of the last step.
    """

    share: float
    step_s: float
    times: Times
    layout: Layout
    micro_batches: int

    def expected(self) -> float:
        """Return the share by the simulator, from the times of the parts."""
        if not self.micro_batches:
            return 0.0
        plan = self.layout.plan(self.micro_batches)
        return simulate(plan, self.times).bubble


def bubble_of(
    steps: Sequence[Sequence[float]],
    line: Group,
    layout: Layout,
    clock_s: float = 0.0,
    message: tuple[float, float] = (0.0, 0.0),
) -> Bubble:
    """Return where the time of some steps went; collective over the ranks of the pipeline.

    Parameters
    ----------
    steps : sequence of sequence of float
        What this rank did in each of them, as `summary` gives it; the same steps on all ranks.
    line : Group
        The ranks of the pipeline.
    layout : Layout
    clock_s : float
        How far the clock of this rank is ahead.
    message : (message_s, latency_s)
        Of a message, for what is expected.
    """
    mine = np.array(steps).reshape(-1, 3 + 3 * layout.chunks)
    mine[:, :2] -= clock_s
    every = np.empty((line.size, *mine.shape))
    line.allgather(mine, every)
    begin, end, count = every[:, :, 0].min(0), every[:, :, 1].max(0), every[0, :, 2]
    whole = float((end - begin).sum())
    busy = float(every[:, :, 3:].sum())
    # By stage: stage s is number s // ranks of rank s % ranks.
    parts = every[:, :, 3:].sum(1).reshape(line.size, layout.chunks, 3)
    parts = parts.transpose(1, 0, 2).reshape(-1, 3) / max(1.0, float(count.sum()))
    f, b, w = (tuple(row) for row in parts.T.tolist())
    return Bubble(
        1 - busy / (whole * line.size) if whole else 0.0,
        whole / max(1, len(steps)),
        Times(f, b, w, *message),
        layout,
        int(count[-1]) if len(count) else 0,
    )


def summary(spans: Sequence[Span]) -> list[float]:
    """Return of a step begin, end, micro-batches, and seconds of F, B and W of each stage."""
    seconds: dict[tuple[int, str], float] = {
        (stage, kind): 0.0
        for stage in sorted({s.action.stage for s in spans})
        for kind in "FBW"
    }
    for (kind, stage, _), start, stop in spans:
        seconds[stage, kind] += stop - start
    count = len({s.action.micro for s in spans})
    return [spans[0].start_s, spans[-1].end_s, count, *seconds.values()]
