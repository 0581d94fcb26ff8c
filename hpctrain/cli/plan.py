"""``plan``: a pipeline schedule as a staircase, with its bubble and what it keeps.

With a model, also where that is cut, and estimated or measured times of its stages instead of
given ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tyro

from hpctrain.autograd import pause
from hpctrain.cli.arguments import call
from hpctrain.cli.stages import times_of_stages
from hpctrain.cli.subject import Subject, divide, of_words
from hpctrain.errors import ConfigError
from hpctrain.graph.capture import capture
from hpctrain.graph.ir import Graph
from hpctrain.parallel.cut_graph import cut_graph, network_of
from hpctrain.parallel.pieces import of_samples
from hpctrain.parallel.pipeline_order import buffers_needed, verify
from hpctrain.parallel.pipeline_schedule import PipelineSchedule
from hpctrain.parallel.pipeline_times import (
    Timeline,
    Times,
    bubble_formula,
    peak_formula,
    simulate,
)
from hpctrain.parallel.staged import Layout
from hpctrain.parallel.stages import describe
from hpctrain.parallel.staircase import draw

__all__ = ["run"]


@dataclass(frozen=True)
class Wanted:
    """Draw a pipeline schedule: ranks are rows, time goes to the right.

    F is forward, B and W are the input and the weight part of backward, BW both at once; the
    number is that of the micro-batch.
    """

    model: tyro.conf.Positional[tuple[str, ...]] = ()
    """to cut: a workload, or a configuration file with its settings as flags; or nothing"""
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
    """let zero_bubble put off each W as far as is best for these times, as in a run"""
    measure: bool = False
    """time the stages of a model on this machine instead of estimating them"""
    whole: bool = False
    """let cotangents wait for W, as in the papers; a run sends them before it"""
    balance: str = "time"
    """what a model is cut by: time, memory or params; groups of the model come first"""
    batch: int = 0
    """samples of the model's batch, all micro-batches together"""
    small: bool = False
    """the workload in sizes for a quick look"""


def run(argv: Sequence[str]) -> int:
    """Print a schedule; no MPI."""
    words, settings = divide(argv)
    wanted = call({"run": Wanted}, ["run", *words], "plan")
    layout = _layout(wanted)
    made = layout.plan(wanted.micro_batches)
    if wanted.model and wanted.times:
        raise ConfigError("plan: got a model and --times, needed one of them")
    times = _of_model(wanted, [*wanted.model, *settings]) if wanted.model else _given(wanted)
    times = replace(times, message_s=wanted.message, latency_s=wanted.latency)
    if wanted.fit:
        made = replace(layout, times=times).plan(wanted.micro_batches)
    timeline = simulate(verify(made), times)
    print(_title(wanted))
    print(draw(timeline))
    print(_figures(wanted, made, timeline, times))
    return 0


def _layout(wanted: Wanted) -> Layout:
    if wanted.fit and wanted.schedule != "zero_bubble":
        raise ConfigError(f"plan: got --fit and {wanted.schedule}, needed zero_bubble")
    if wanted.measure and not wanted.model:
        raise ConfigError("plan: got --measure and no model, needed one; name it first")
    size = wanted.micro_batches, wanted.chunks, wanted.balance
    return Layout(wanted.stages, wanted.schedule, *size, whole=wanted.whole)


def _given(wanted: Wanted, forward: tuple[float, ...] = ()) -> Times:
    """Return times in the proportions that are given."""
    forward = forward or _forward(wanted)
    b, w = (tuple(f * share for f in forward) for share in (wanted.backward, wanted.weight))
    return Times(forward, b, w)


def _of_model(wanted: Wanted, words: Sequence[str]) -> Times:
    """Cut a model, print the stages, and return their times."""
    subject = of_words(words, wanted.batch, wanted.small, 1)
    if not wanted.measure:
        return _given(wanted, _cut(wanted, subject))
    parts = subject.objective, subject.net.collect_params(), subject.specs, subject.batch_axis
    model, times = times_of_stages(*parts, _layout(wanted))
    print(f"{subject.name}: forward part for one micro-batch, measured\n")
    print(f"{model.describe()}\n")
    return times


def _forward(wanted: Wanted) -> tuple[float, ...]:
    """Return the times of each stage; those of a rank are spread evenly over its stages."""
    try:
        given = tuple(map(float, wanted.times.split(","))) if wanted.times else ()
    except ValueError:
        raise ConfigError(
            f"plan: got --times {wanted.times!r}, needed numbers with commas between them"
        ) from None
    ranks, every = wanted.stages, wanted.stages * wanted.chunks
    forward = given or (1.0,) * ranks
    if len(forward) not in (ranks, every):
        raise ConfigError(
            f"plan: got {len(forward)} --times, needed {ranks}, one for each rank"
            + (f", or {every}, one for each stage" if every > ranks else "")
        )
    if len(forward) == every:
        return forward
    return tuple(f / wanted.chunks for f in forward) * wanted.chunks


def _cut(wanted: Wanted, subject: Subject) -> tuple[float, ...]:
    """Cut a model, print the stages, and return their estimated times."""
    size = wanted.stages, wanted.micro_batches, wanted.chunks
    graph = _forward_graph(subject, -(-subject.batch // wanted.micro_batches))
    peaks = [peak_formula(wanted.schedule, rank, *size) for rank in range(wanted.stages)]
    kept = [-(-peak // wanted.chunks) for peak in peaks] * wanted.chunks
    ordered, cut = cut_graph(graph, wanted.stages * wanted.chunks, wanted.balance, kept=kept)
    print(f"{subject.name}: forward part for one micro-batch, estimated\n")
    print(f"{describe(network_of(ordered), cut, ordered.names)}\n")
    return tuple(stage.time_s for stage in cut.stages)


def _forward_graph(subject: Subject, samples: int) -> Graph:
    """Capture model and loss as in training, for so many samples; leaves have their names."""
    inputs, targets = (of_samples(s, samples, subject.batch_axis) for s in subject.specs)
    leaves, count = subject.leaves(), len(inputs)

    def function(*tensors: Any) -> tuple[Any, ...]:
        return subject.objective(tensors[:count], tensors[count:])[:2]

    with pause():
        graph = capture(function, [*inputs, *targets], list(leaves.values()), training=True)
    return replace(graph, names=dict(zip(graph.leaves, leaves, strict=True)))


def _title(wanted: Wanted) -> str:
    ranks = f"{wanted.stages} ranks"
    if wanted.chunks > 1:
        ranks += f" of {wanted.chunks} chunks"
    return f"{wanted.schedule}: {ranks}, {wanted.micro_batches} micro-batches"


def _figures(wanted: Wanted, made: PipelineSchedule, timeline: Timeline, times: Times) -> str:
    size = wanted.stages, wanted.micro_batches, wanted.chunks
    f, b, w = map(sum, (times.forward_s, times.backward_s, times.weight_s))
    equal = bubble_formula(wanted.schedule, *size, (f, b, w), wanted.whole)
    bound = "at most " if wanted.chunks > 1 and not wanted.whole else ""
    peaks = [peak_formula(wanted.schedule, rank, *size) for rank in range(wanted.stages)]
    return "\n".join(
        [
            f"makespan          {timeline.makespan_s:.6g} s",
            f"bubble            {timeline.bubble:.2%}; formula for equal ranks and free "
            f"messages {bound}{equal:.2%}",
            f"peak activations  {_numbers(timeline.peaks)}; formula {_numbers(peaks)}",
            f"message buffers   {buffers_needed(made)} for each channel",
        ]
    )


def _numbers(values: Sequence[int]) -> str:
    return " ".join(map(str, values))
