"""From a configuration to a pipeline: the mesh, and the step of one rank."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from hpctrain import engine
from hpctrain.backend import Device
from hpctrain.cli import build, tensor
from hpctrain.cli.exchange import OPEN, PAUSE_S, Traffic, overlaps, way_of
from hpctrain.cli.fitting import batch_specs
from hpctrain.cli.room import Room, state_bytes
from hpctrain.comm.mesh import Mesh
from hpctrain.comm.watched import Logs
from hpctrain.comm.world import World
from hpctrain.config import Config
from hpctrain.engine import LaneSpec
from hpctrain.io.sampler import part
from hpctrain.optim import Schedule
from hpctrain.parallel.micro import most_samples
from hpctrain.parallel.pieces import of_samples
from hpctrain.parallel.pipeline import Pipeline, summing
from hpctrain.parallel.pipeline_recipe import WIRE, wire_lane
from hpctrain.parallel.pipeline_times import bubble_formula, simulate
from hpctrain.parallel.stage_state import StageState
from hpctrain.parallel.staged import Layout, StagedModel
from hpctrain.trace import Recorder
from hpctrain.train.console import Console

__all__ = [
    "Place", "banner", "connected", "count_idle", "lanes", "layout_of", "mesh_of", "model_of",
    "replica", "state_of", "step_of", "tell",
]  # fmt: skip


class Place(NamedTuple):
    """Where this rank computes, and with what; ``logs`` where messages are watched."""

    device: Device
    cores: float
    logs: Logs | None
    traffic: Traffic

    @property
    def noted(self) -> Logs:
        """Where messages are noted, if only for nobody."""
        return self.logs or Logs()

    @property
    def pause_s(self) -> float:
        """How to wait for messages on the compute lane."""
        return PAUSE_S if self.cores < 1 else 0.0


def mesh_of(config: Config, world: World) -> Mesh | None:
    """Return the grid of ranks, None where each has a whole model; collective."""
    p = config.parallel
    if p.pipeline * p.tensor == 1:
        return None
    return Mesh(world.group, pipeline=p.pipeline, tensor=p.tensor)


def replica(mesh: Mesh | None, world: World) -> tuple[int, int]:
    """Return which part of a batch this rank takes, and how many there are."""
    if mesh is None:
        return world.rank, world.size
    return mesh.place.data, mesh.shape.data


def lanes(config: Config, pause_s: float) -> Mapping[str, LaneSpec]:
    """Return the lanes that a pipeline needs beside the others."""
    ranks = config.parallel.pipeline
    several = ranks * config.parallel.tensor > 1
    return {WIRE: wire_lane(ranks, pause_s)} if several else {}


def layout_of(config: Config, tuned: str = OPEN) -> Layout:
    """Return how the model goes through its stages.

    A schedule that the configuration leaves open is the ``tuned`` one, or 1f1b.
    """
    p, states = config.parallel, len(build.optimizer(config).state_names)
    schedule = next((s for s in (p.schedule, tuned) if s != OPEN), "1f1b")
    size = p.pipeline, schedule, p.micro_batches, p.chunks
    return Layout(*size, p.balance, copies=2 + states)


def step_of(  # noqa: PLR0913 (the parts that meet here)
    config: Config,
    world: World,
    mesh: Mesh,
    lanes_: engine.Engine,
    loader: Any,
    place: Place,
    facts: Callable[[Config, Any], dict[str, str]],
) -> Pipeline:
    """Build the stages of this rank and their training step; collective.

    The model is made without memory for its parameters, cut, and then the parameters of this
    rank's stages get their values, which depend on seed and name alone.
    """
    room = Room(world, config)
    made = model_of(config, room, mesh, loader, place)
    state = state_of(config, mesh, made, place)
    tensor.agree_on(facts(config, state), world, mesh)
    state.broadcast(world.control)
    schedule = build.schedule(config, build.steps_per_epoch(config, loader.plan))
    step = connected(config, world, mesh, lanes_, (made[0], state), place, schedule)
    step.prepare(*batch_specs(loader, _samples(loader, mesh)))
    room.planned(step)
    return step


def state_of(
    config: Config, mesh: Mesh, made: tuple[StagedModel, tensor.Parts], place: Place
) -> StageState:
    """Put what this rank has of a model into flat buffers."""
    model, parts = made
    nbytes, optimizer = round(place.traffic.slice_mib * build.MIB), build.optimizer(config)
    return StageState(model, parts.parameters, optimizer, mesh, nbytes, parts.division)


def connected(  # noqa: PLR0913 (the parts that meet here)
    config: Config,
    world: World,
    mesh: Mesh,
    lanes_: engine.Engine,
    made: tuple[StagedModel, StageState],
    place: Place,
    schedule: Schedule,
) -> Pipeline:
    """Connect the replicas of each stage, and make the step, to be prepared; collective."""
    overlap = overlaps(place.traffic, world, place.cores)
    options = build.options(config, overlap, place.pause_s)
    way = way_of(place.traffic, world, made[1], summing(options), group=mesh.data)
    way = replace(way, log=place.noted.among(mesh.data, "slices", by_step=True))
    (model, state), optimizer = made, build.optimizer(config)
    step = Pipeline(model, state, optimizer, schedule, lanes_, mesh, options, way)
    step.watch(place.noted)
    return step


def _samples(loader: Any, mesh: Mesh) -> int:
    """Return the most samples of a batch that a replica has."""
    share = part(loader.plan.batch, 0, mesh.shape.data, loader.unit)
    return share.stop - share.start


def model_of(
    config: Config, room: Room, mesh: Mesh, loader: Any, place: Place
) -> tuple[StagedModel, tensor.Parts]:
    """Cut the model, and give the parameters of this rank's stages their values."""
    world, layout, device = room.world, layout_of(config, place.traffic.schedule), place.device
    log = place.noted.among(mesh.data, "statistics of micro-batches")
    together = build.together(config, mesh.data, place.pause_s, log)
    made = tensor.made_hollow(config, world, loader, device, together)
    samples, shard = _samples(loader, mesh), build.shard(config)
    most = most_samples(samples, layout.micro_batches)
    timed = layout.balance == "time"
    if shard:
        # Nothing that differs from run to run, or with the number of replicas, may say where
        # the model is cut: no times, and the micro-batches of a replica alone.
        most, timed = min(shard, samples), False
        layout = replace(layout, micro_batches=-(-loader.plan.batch // shard))
    inputs, targets = (of_samples(s, most) for s in batch_specs(loader, samples))
    specs = inputs, targets
    parts = tensor.parts_of(config, world, mesh, made, place, specs)
    goal, parameters = parts.goal, parts.parameters
    model = StagedModel(goal, parameters, layout, specs, world.control, device, timed)
    mine = {name for name in parameters if mesh.place.pipeline in model.homes(name)}
    own = {name: parameters[name] for name in parameters if name in mine}
    saves = room.world.rank == 0
    room.state = state_bytes(own, config, mesh.shape.data, shard > 0, saves)
    room.check(room.state)
    parts.settle(mine)
    return model, parts


def banner(
    world: World, step: Pipeline, loader: Any, threads: str, tuning: str
) -> dict[str, Any]:
    """Return what there is to say about a run in stages; ``tuning``: how ways were found."""
    layout, shape, stages = step.model.layout, step.mesh.shape, step.stages
    state = step.state
    assert isinstance(state, StageState), "a rank of stages has a part of the model"
    count = step.micro_batches
    bubble = bubble_formula(layout.schedule, layout.ranks, count, layout.chunks)
    return {
        "ranks": f"{world.size} on {len(world.hosts)} host(s), {world.library}",
        "mesh": f"{shape.data} replica(s) x {shape.pipeline} ranks"
        + (f" of {layout.chunks} stages" if layout.chunks > 1 else "")
        + (f" x {shape.tensor} that share layers" if shape.tensor > 1 else ""),
        "device": f"{step.state.device}, {threads}",
        "parameters": sum(spec.size for spec in state.whole.specs.values()),
        "memory of rank 0": f"{stages.arena_bytes / 2**20:.1f} MiB to work in, "
        f"{stages.kept_bytes / 2**20:.1f} MiB for kept values, "
        f"{step.state.flat.weights.nbytes / 2**20:.1f} MiB of parameters",
        "records": loader.records.n,
        "batch": f"{loader.plan.batch} over all replicas, {loader.plan.steps} an epoch"
        + (f", {step.options.accumulate} to a step" if step.options.accumulate > 1 else ""),
        "pipeline": f"{layout.schedule}, {count} micro-batches of up to "
        f"{step.most} samples, bubble {bubble:.1%} if all stages are equal",
        "exchange": f"{len(state.flat.slices)} slice(s) of rank 0 among replicas, path "
        f"{step.way.kind}, {'overlapping' if step.options.overlap else 'after the step'}"
        if shape.data > 1
        else None,
        "tuning": tuning or None,
    }


def tell(console: Console, step: Any, recorder: Recorder) -> None:
    """Say where a model is cut, if it is, and let its stages have rows in traces."""
    if isinstance(step, Pipeline):
        step.moves.recorder = recorder
        for line in step.model.describe().splitlines():
            console.line(f"  {line}")


def count_idle(step: Any, recorder: Recorder) -> None:
    """Put the bubble of the last step into a trace, beside what is expected; collective."""
    if not isinstance(step, Pipeline):
        return
    timeline, layout = step.timeline(), step.model.layout
    if step.rank == 0 and timeline.ranks[0]:
        count = len({span.action.micro for span in timeline.ranks[0]})
        size = layout.ranks, count, layout.chunks
        expected = simulate(step.plan(count), timeline.times(*step.message)).bubble
        recorder.counter("bubble", timeline.bubble)
        recorder.counter("bubble expected from its times", expected)
        recorder.counter("bubble of the papers", bubble_formula(layout.schedule, *size))
