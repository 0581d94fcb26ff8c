"""``bench pipeline``: how long a pipeline stands still, beside formula and simulator."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Annotated, Literal

import numpy as np
import tyro

from hpctrain import backend, engine
from hpctrain.cli import bench_step
from hpctrain.cli.exchange import Traffic, lanes_for, overlaps, settled
from hpctrain.cli.pace import pace
from hpctrain.cli.stages import pipeline_of, specs_of, times_of_stages, work_of
from hpctrain.cli.threads import limit_threads
from hpctrain.comm.mesh import Mesh
from hpctrain.comm.world import World, start
from hpctrain.errors import ConfigError
from hpctrain.graph.native import fuses
from hpctrain.models.workloads import Workload
from hpctrain.parallel.bubble import bubble_of
from hpctrain.parallel.pipeline import Pipeline
from hpctrain.parallel.pipeline_recipe import WIRE, wire_lane
from hpctrain.parallel.pipeline_times import Times, bubble_formula, simulate
from hpctrain.parallel.program import Objective
from hpctrain.parallel.staged import Layout
from hpctrain.parallel.terms import Terms
from hpctrain.parallel.work import Options, Work

__all__ = ["pipeline"]

Name = Literal["deep", "mlp", "resnet20", "lstm", "gpt", "cosmo", "lenet"]
WARM_UP = 5
HEAD = (
    "schedule     stages micro |  ms/step  bubble expected | even steps | equal stages   "
    "| papers\n"
)


def pipeline(  # noqa: PLR0913 (its flags)
    workload: Annotated[Name, tyro.conf.Positional],
    stages: int = 2,
    micro: str = "4,8",
    schedules: str = "gpipe,1f1b,zero_bubble",
    batch: int = 0,
    layers: int = 8,
    width: int = 1024,
    steps: int = 20,
    balance: Literal["time", "memory", "params"] = "time",
    whole: bool = False,
    replicas: bool = False,
    simulated: str = "",
    even: float = 0.03,
    pin: bool = True,
) -> None:
    """Time pipelines of a workload with made-up inputs, SGD with momentum, float32.

    Bubbles are shares of the time from the first action of a step to the last: measured (the
    median step), expected by the simulator from the times of the parts in that step, measured
    in the steps in which all ranks worked for equally long (the median, and how many), by the
    formula for equal stages of the same mean times, and by that of the papers. What even steps
    have more than the formula is told in brackets; all steps, if there was no even one.

    Args:
        workload: which model; deep: an mlp of equal layers.
        stages: ranks of a pipeline; all ranks together are as many, or a multiple.
        micro: numbers of micro-batches, with commas.
        schedules: with commas.
        batch: samples of all replicas together; that of the workload for each rank if 0.
        layers: dense layers of deep.
        width: outputs of each of them.
        steps: steps that count, after 5 to warm up; 0 to simulate only.
        balance: what the cut makes even.
        whole: let cotangents wait for W, as the formula of the papers has it.
        replicas: time whole models on all ranks too, on the same batch.
        simulated: numbers of stages, with commas, to simulate from times measured on rank 0.
        even: in an even step the longest work of a rank is at most so much above the shortest.
        pin: let each rank run on one core of its own, where there are enough.
    """
    with start() as world:
        if pin:
            _pin(world)
        cores = limit_threads(world, 1)[1]
        layouts = [
            Layout(stages, kind, count, 1, balance, whole=whole)
            for count in _numbers("micro", micro)
            for kind in schedules.split(",")
            if kind
        ]
        size = batch, layers, width
        _say(world, f"{workload}: {world.size} ranks, {cores:g} core(s) each\n{HEAD}")
        for layout in layouts if steps else ():
            _say(world, _measured(world, workload, size, layout, (steps, even), cores))
        if replicas and steps:
            _say(world, _replicas(world, workload, size, steps, cores))
        for count in _numbers("simulated", simulated):
            for line in _simulated(world, workload, size, layouts, count):
                _say(world, line)


def _numbers(name: str, text: str) -> list[int]:
    """Return the numbers of a list with commas."""
    words = [word for word in text.split(",") if word]
    if not all(word.isdigit() and int(word) for word in words):
        raise ConfigError(
            f"bench: got --{name} {text}, needed numbers with commas between them"
        )
    return [int(word) for word in words]


def _pin(world: World) -> None:
    """Keep each rank of a host to one core, if no two need to share one."""
    mask = sorted(os.sched_getaffinity(0))
    if len(mask) >= world.local_size:
        os.sched_setaffinity(0, {mask[world.local_rank]})


def _say(world: World, text: str) -> None:
    if world.rank == 0:
        print(text, end="", flush=True)


def _measured(
    world: World,
    name: str,
    size: tuple[int, int, int],
    layout: Layout,
    count: tuple[int, float],
    cores: float,
) -> str:
    """Run a pipeline and return its line; ``count``: steps, and how equal an even one is."""
    steps, even = count
    traffic = settled(Traffic(waiting="polling"), world, cores, world.size // layout.ranks)
    options = Options(overlaps(traffic, world, cores), fuse=fuses("auto"))
    options = replace(options, pause_s=traffic.pause_s if cores < 1 else 0.0)
    with ExitStack() as stack:
        mesh = stack.enter_context(Mesh(world.group, pipeline=layout.ranks))
        batch = (size[0] or work_of(name, 0).batch * world.size) // mesh.shape.data
        work = work_of(name, batch, *size[1:])
        wire = {WIRE: wire_lane(layout.ranks, traffic.eager_s)}
        lanes = stack.enter_context(
            engine.create(lanes={**lanes_for(traffic), **wire}, run_ahead=4096)
        )
        step = pipeline_of(work, world, mesh, lanes, layout, traffic, options)
        inputs, labels = work.make(np.random.default_rng(mesh.place.data))
        part = Work((inputs,), (labels,), work.batch, work.batch * mesh.shape.data)
        found = pace(step, part, world.control, steps, WARM_UP)
        shares = _bubbles(step, steps, even)
        step.free()
        step.way.free()
    return _line(step.model.layout, found.step_s, shares)


@dataclass(frozen=True, slots=True)
class _Shares:
    """Bubbles of a run: None where nothing was measured; ``times`` are those of the parts."""

    times: Times
    expected: float
    every: float | None = None
    even: float | None = None
    even_steps: int = 0


def _bubbles(step: Pipeline, steps: int, even: float) -> _Shares:
    """Return measured and expected shares of the median step, and median times."""
    rows = [row for _, row in sorted(step.moves.steps.items())][-steps:]
    line, layout = step.mesh.pipeline, step.model.layout
    found = [bubble_of([row], line, layout, step.clock_s, step.message) for row in rows]
    parts = [b.times for b in found]
    f, b, w = (
        tuple(map(median, zip(*(getattr(t, kind) for t in parts), strict=True)))
        for kind in ("forward_s", "backward_s", "weight_s")
    )
    alike = [b.share for b in found if _unevenness(b.times, layout.ranks) <= even]
    return _Shares(
        Times(f, b, w, *step.message),
        median(b.expected() for b in found),
        median(b.share for b in found),
        median(alike) if alike else None,
        len(alike),
    )


def _unevenness(times: Times, ranks: int) -> float:
    """Return how much longer the rank that has most to do works than the one with least."""
    stages = [
        sum(s) for s in zip(times.forward_s, times.backward_s, times.weight_s, strict=True)
    ]
    work = [sum(stages[rank::ranks]) for rank in range(ranks)]
    return max(work) / min(work) - 1


def _line(layout: Layout, step_s: float | None, shares: _Shares) -> str:
    """Write a row of the table; shares that were not measured are left out."""
    size, times = (layout.ranks, layout.micro_batches, layout.chunks), shares.times
    f, b, w = (mean(part) for part in (times.forward_s, times.backward_s, times.weight_s))
    equal = bubble_formula(layout.schedule, *size, (f, b, w), layout.whole)
    papers = bubble_formula(layout.schedule, *size, (f, b, w))
    shown = "" if step_s is None else f"{step_s * 1e3:.1f}"
    measured = "" if shares.every is None else f"{shares.every:.1%}"
    alike = "" if shares.even is None else f"{shares.even:.1%} of {shares.even_steps}"
    every = shares.expected if shares.every is None else shares.every
    compared = every if shares.even is None else shares.even
    off = f" ({compared / equal - 1:+.0%})" if equal else ""
    name = layout.schedule + (" whole" if layout.whole else "")
    return (
        f"{name:<17} {layout.ranks:>2} {layout.micro_batches:>5} | {shown:>8} {measured:>7} "
        f"{shares.expected:>8.1%} | {alike:>10} | {equal:>6.1%}{off:<8} | {papers:.1%}  "
        f"F {f * 1e3:.2f} B {b * 1e3:.2f} W {w * 1e3:.2f} ms\n"
    )


def _replicas(
    world: World, name: str, size: tuple[int, int, int], steps: int, cores: float
) -> str:
    """Train whole models on all ranks and return the line."""
    traffic = settled(Traffic(), world, cores)
    options = Options(overlaps(traffic, world, cores), fuse=fuses("auto"))
    batch = (size[0] or work_of(name, 0).batch * world.size) // world.size
    work = work_of(name, batch, *size[1:])
    with engine.create(lanes=lanes_for(traffic), run_ahead=4096) as lanes:
        step = bench_step.trainer_of(work, world, lanes, options, traffic, Terms())
        inputs, labels = work.make(np.random.default_rng(world.rank))
        part = Work((inputs,), (labels,), work.batch, work.batch * world.size)
        step.prepare(*part.specs())
        found = pace(step, part, world.control, steps, bench_step.WARM_UP)
        step.way.free()
    return f"{world.size} replicas{'':>16} | {found.step_s * 1e3:>8.1f}\n"


def _simulated(
    world: World,
    name: str,
    size: tuple[int, int, int],
    layouts: Sequence[Layout],
    stages: int,
) -> Iterator[str]:
    """Yield the lines of so many stages, by times measured on rank 0 alone."""
    known: dict[int, Times | None] = {}
    for layout in layouts:
        made, count = replace(layout, ranks=stages), layout.micro_batches
        if count not in known:
            if world.rank == 0:
                known[count] = _times(work_of(name, size[0], *size[1:]), made)
            else:
                known[count] = None
            world.control.allgather_obj(0)  # the others do nothing meanwhile
        times = known[count]
        if times is not None:
            plan = replace(made, times=times).plan(count)
            yield _line(made, None, _Shares(times, simulate(plan, times).bubble))
        else:
            yield ""


def _times(work: Workload, layout: Layout) -> Times:
    work.net.initialize(ctx=backend.CPU, seed=0)
    goal, parameters = Objective(work.net, work.loss), work.net.collect_params()
    parts = goal, parameters, specs_of(work), work.batch_axis
    return times_of_stages(*parts, layout, fuses("auto"))[1]
