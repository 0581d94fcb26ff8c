"""``plan``: a pipeline schedule as a staircase, with its bubble and what it keeps."""

from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.cli.arguments import call
from hpctrain.errors import ConfigError
from hpctrain.parallel.pipeline_order import buffers_needed, verify
from hpctrain.parallel.pipeline_schedule import PipelineSchedule, schedule
from hpctrain.parallel.pipeline_times import (
    Timeline,
    Times,
    bubble_formula,
    fastest_zero_bubble,
    peak_formula,
    simulate,
)
from hpctrain.parallel.staircase import draw

__all__ = ["run"]


@dataclass(frozen=True)
class Wanted:
    """Draw a pipeline schedule: ranks are rows, time goes to the right.

    F is forward, B and W are the input and the weight part of backward, BW both at once; the
    number is that of the micro-batch.
    """

    schedule: str = "1f1b"
    """gpipe, 1f1b, interleaved or zero_bubble"""
    stages: int = 4
    """ranks of the pipeline"""
    micro_batches: int = 8
    """parts of the batch"""
    chunks: int = 1
    """stages on each rank, for interleaved"""
    times: str = ""
    """forward seconds of each rank, or of each stage, with commas; empty for 1 each"""
    backward: float = 1.0
    """seconds of B for each second of F"""
    weight: float = 1.0
    """seconds of W for each second of F"""
    message: float = 0.0
    """seconds that a message keeps its channel busy"""
    latency: float = 0.0
    """seconds from then until it has arrived"""
    fit: bool = False
    """let zero_bubble put off each W as far as is best for these times"""


def run(argv: Sequence[str]) -> int:
    """Print a schedule; no MPI."""
    wanted = call({"run": Wanted}, ["run", *argv], "plan")
    made = schedule(wanted.schedule, wanted.stages, wanted.micro_batches, wanted.chunks)
    times = _times(wanted)
    if wanted.fit:
        made = _fitted(wanted, times)
    timeline = simulate(verify(made), times)
    print(_title(wanted))
    print(draw(timeline))
    print(_figures(wanted, made, timeline))
    return 0


def _fitted(wanted: Wanted, times: Times) -> PipelineSchedule:
    if wanted.schedule != "zero_bubble":
        raise ConfigError(f"plan: got --fit and {wanted.schedule}, needed zero_bubble")
    return fastest_zero_bubble(wanted.stages, wanted.micro_batches, times)


def _times(wanted: Wanted) -> Times:
    """Return the times of each stage; those of a rank are spread evenly over its stages."""
    every, count = wanted.stages * wanted.chunks, len(wanted.times.split(","))
    try:
        forward = tuple(map(float, wanted.times.split(","))) if wanted.times else ()
    except ValueError:
        raise ConfigError(
            f"plan: got --times {wanted.times!r}, needed numbers with commas between them"
        ) from None
    if not forward:
        forward = (1.0,) * wanted.stages
    elif count not in (wanted.stages, every):
        raise ConfigError(
            f"plan: got {count} --times, needed {wanted.stages}, one for each rank"
            + (f", or {every}, one for each stage" if every > wanted.stages else "")
        )
    if len(forward) < every:
        forward = tuple(f / wanted.chunks for f in forward) * wanted.chunks
    return Times(
        forward,
        tuple(f * wanted.backward for f in forward),
        tuple(f * wanted.weight for f in forward),
        wanted.message,
        wanted.latency,
    )


def _title(wanted: Wanted) -> str:
    ranks = f"{wanted.stages} ranks"
    if wanted.chunks > 1:
        ranks += f" of {wanted.chunks} chunks"
    return f"{wanted.schedule}: {ranks}, {wanted.micro_batches} micro-batches"


def _figures(wanted: Wanted, made: PipelineSchedule, timeline: Timeline) -> str:
    size = wanted.stages, wanted.micro_batches, wanted.chunks
    equal = bubble_formula(wanted.schedule, *size, (1.0, wanted.backward, wanted.weight))
    peaks = [peak_formula(wanted.schedule, rank, *size) for rank in range(wanted.stages)]
    return "\n".join(
        [
            f"makespan          {timeline.makespan_s:.6g} s",
            f"bubble            {timeline.bubble:.2%}; formula for equal ranks and free "
            f"messages {equal:.2%}",
            f"peak activations  {_numbers(timeline.peaks)}; formula {_numbers(peaks)}",
            f"message buffers   {buffers_needed(made)} for each channel",
        ]
    )


def _numbers(values: Sequence[int]) -> str:
    return " ".join(map(str, values))
