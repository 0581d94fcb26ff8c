"""How long a pipeline schedule takes: by simulation for any times, by formula for equal ones.

An action begins when its rank is free and all that it needs has arrived. A message leaves when
its action is done and the message before it on the same channel has left; sending takes no
time from the ranks. Nothing else is modelled, so the simulator is exact for these rules.

With S ranks, m micro-batches, v chunks, and f, b, w seconds of a rank's F, B and W for one
micro-batch, a rank works for m (f + b + w) seconds and idles, if all ranks are equal,

    gpipe, 1f1b   (S - 1) (f + b + w), or (S - 1) (f + b) if taken apart
    interleaved   (S - 1 + (v - 1) max(0, S - m)) (f + b + w) / v
    zero_bubble   (S - 1) (f + b) - (min(m, S) - 1) min(f, b, w)

The *bubble* is the share of idle time: for the first two (S - 1) / (m + S - 1); with m >= S for
interleaved (S - 1) / (v m + S - 1). These two are in the papers, as (S - 1) (f + b - w) is for
zero bubble with m >= S and w <= f, b (see `hpctrain.parallel.pipeline_schedule`); the more
general forms here agree with the simulator wherever the tests compare them.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from hpctrain.errors import ConfigError
from hpctrain.parallel.pipeline_messages import Channel, home_of, message_of, needs, parts
from hpctrain.parallel.pipeline_order import execution_order
from hpctrain.parallel.pipeline_schedule import Action, PipelineSchedule, warm_up, zero_bubble

__all__ = [
    "Span", "Timeline", "Times", "bubble_formula", "fastest_zero_bubble", "peak_formula",
    "simulate",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each stage for one micro-batch, and of a message.

    Attributes
    ----------
    forward_s, backward_s, weight_s : tuple of float
        F, B and W by stage; BW takes the sum of the last two.
    message_s : float
        For which a message keeps its channel busy.
    latency_s : float
        From when it has left until it has arrived.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    message_s: float = 0.0
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        counts = {len(self.forward_s), len(self.backward_s), len(self.weight_s)}
        every = (*self.forward_s, *self.backward_s, *self.weight_s)
        every += self.message_s, self.latency_s
        if len(counts) != 1 or not all(math.isfinite(t) and t >= 0 for t in every):
            raise ConfigError(
                f"times: got {self.forward_s}, {self.backward_s}, {self.weight_s}, messages "
                f"{self.message_s} and {self.latency_s}; needed as many of F, B and W, all "
                "finite, none negative"
            )

    def of(self, action: Action) -> float:
        """Return the seconds of ``action``."""
        kinds = {"F": self.forward_s, "B": self.backward_s, "W": self.weight_s}
        return sum(kinds[part][action.stage] for part in action.kind)


class Span(NamedTuple):
    """When an action begins and ends, in seconds from the start of the step."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each rank does what, simulated or measured with aligned clocks.

    Attributes
    ----------
    ranks : tuple of tuple of Span
        By rank, in order.
    """

    ranks: tuple[tuple[Span, ...], ...]

    @property
    def makespan_s(self) -> float:
        """Seconds from when the first rank begins until the last one has ended."""
        begin = min(spans[0].start_s for spans in self.ranks)
        return max(spans[-1].end_s for spans in self.ranks) - begin

    @property
    def bubble(self) -> float:
        """Share of the time, over all ranks, in which nothing is done."""
        whole = self.makespan_s * len(self.ranks)
        return (whole - sum(map(self._busy, self.ranks))) / whole if whole else 0.0

    @property
    def peaks(self) -> tuple[int, ...]:
        """By rank, the largest number of activations kept: from F to the end of W, or BW."""
        return tuple(map(self._peak, self.ranks))

    def times(self, message_s: float = 0.0, latency_s: float = 0.0) -> Times:
        """Return the median seconds of F, B and W of each stage, to simulate others with.

        A BW counts as a B, since it cannot be told how much of it is W. What is noted in
        several spans is one action.
        """
        every = defaultdict[Action, float](float)
        for spans in self.ranks:
            for action, start, end in spans:
                every[action] += end - start
        found = defaultdict[tuple[str, int], list[float]](list)
        for action, seconds in every.items():
            found[action.kind[0], action.stage].append(seconds)
        stages = range(1 + max(stage for _, stage in found))
        f, b, w = (tuple(median(found[k, s] or [0.0]) for s in stages) for k in "FBW")
        return Times(f, b, w, message_s, latency_s)

    @staticmethod
    def _busy(spans: Sequence[Span]) -> float:
        return sum(end - start for _, start, end in spans)

    @staticmethod
    def _peak(spans: Sequence[Span]) -> int:
        kept = peak = 0
        for action, _, _ in spans:
            kept += action.kind == "F"
            peak = max(peak, kept)
            kept -= action.kind in ("W", "BW")
        return peak


def simulate(schedule: PipelineSchedule, times: Times) -> Timeline:
    """Return when each action begins and ends.

    Parameters
    ----------
    schedule : PipelineSchedule
    times : Times
        Of as many stages as the schedule has.

    Returns
    -------
    Timeline

    Raises
    ------
    ConfigError
        If there are other numbers of stages.
    EngineError
        If the schedule has no end.
    """
    home = home_of(schedule)
    if len(home) != len(times.forward_s):
        raise ConfigError(
            f"simulate: got times of {len(times.forward_s)} stages, needed {len(home)}"
        )
    spans: list[list[Span]] = [[] for _ in schedule]
    arrived: list[dict[Action, float]] = [{} for _ in schedule]  # by rank
    free = defaultdict[Channel, float](float)  # when a channel is
    for rank, action in execution_order(schedule):
        wanted = [arrived[rank][need] for need in needs(action, len(home) - 1)]
        start = max([spans[rank][-1].end_s if spans[rank] else 0.0, *wanted])
        end = start + times.of(action)
        spans[rank].append(Span(action, start, end))
        arrived[rank].update(dict.fromkeys(parts(action), end))
        sent = message_of(action, home)
        if sent is not None:
            channel = sent.source, sent.dest
            free[channel] = max(end, free[channel]) + times.message_s
            arrived[sent.dest][sent.carried] = free[channel] + times.latency_s
    return Timeline(tuple(map(tuple, spans)))


def bubble_formula(
    kind: str,
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    seconds: tuple[float, float, float] = (1.0, 1.0, 1.0),
    whole: bool = True,
) -> float:
    """Return the share of idle time for equal ranks and messages that take no time.

    Parameters
    ----------
    kind : str
    stages, micro_batches, chunks : int
    seconds : (f, b, w)
        Of F, B and W of all of a rank's stages for one micro-batch; without meaning where a
        schedule is whole, but for zero bubble.
    whole : bool
        Cotangents wait for W, as in the papers; otherwise the schedule is taken apart (see
        `hpctrain.parallel.pipeline_schedule.apart`), and for interleaved this is a bound.
    """
    f, b, w = seconds
    work = micro_batches * (f + b + w)
    if kind == "zero_bubble":
        idle = (stages - 1) * (f + b) - (min(micro_batches, stages) - 1) * min(f, b, w)
    elif not whole and kind != "interleaved":
        idle = (stages - 1) * (f + b)
    else:
        again = (chunks - 1) * max(0, stages - micro_batches)  # fewer than the way is long
        work, idle = chunks * micro_batches, stages - 1 + again
    return idle / (work + idle)


def peak_formula(kind: str, rank: int, stages: int, micro_batches: int, chunks: int = 1) -> int:
    """Return how many activations, each of one stage and micro-batch, ``rank`` keeps at most.

    All micro-batches for GPipe, ``min(m, S - rank)`` for 1F1B, ``min(m, S)`` for ZB-H1.
    """
    if kind == "zero_bubble":
        return min(micro_batches, stages)
    ahead = warm_up(kind, rank, stages, micro_batches, chunks)
    return min(ahead + 1, chunks * micro_batches)


def fastest_zero_bubble(stages: int, micro_batches: int, times: Times) -> PipelineSchedule:
    """Return the zero-bubble schedule whose delays fit ``times``.

    Delays of 0 give 1F1B, but that cotangents leave earlier: never slower. ZB-H1 is made for
    equal stages: where W takes long on one rank, putting it off can cost more than it gains.
    From the better of the two, one rank after the other takes the delay, none longer than
    that of ZB-H1, with which the step is shortest.

    Notes
    -----
    Simulates about ``stages ** 2 / 2`` schedules; the same result on every rank that gives the
    same times.
    """

    def makespan(delays: Sequence[int]) -> float:
        return simulate(zero_bubble(stages, micro_batches, delays), times).makespan_s

    best = min([0] * stages, list(range(stages)), key=makespan)
    for rank in range(stages):
        choices = [[*best[:rank], delay, *best[rank + 1 :]] for delay in range(rank + 1)]
        best = min(choices, key=makespan)
    return zero_bubble(stages, micro_batches, best)
