"""From a configuration to a team that shares each layer: the parts and the step of one rank."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hpctrain import engine
from hpctrain.backend import Device
from hpctrain.cli import build
from hpctrain.cli.exchange import PAUSE_S, overlaps, way_of
from hpctrain.cli.fitting import batch_specs
from hpctrain.cli.room import Room, state_bytes
from hpctrain.comm.agree import agree
from hpctrain.comm.guard import agreed
from hpctrain.comm.mesh import Mesh
from hpctrain.comm.team import Team
from hpctrain.comm.world import World
from hpctrain.config import Config
from hpctrain.io.sampler import part
from hpctrain.nn import Block
from hpctrain.optim import Schedule
from hpctrain.parallel.evaluate import Evaluator
from hpctrain.parallel.hollow import fill, hollow, settle, start_hollow
from hpctrain.parallel.mesh_state import MeshState, whole_of
from hpctrain.parallel.program import Objective
from hpctrain.parallel.shared_model import (
    Division,
    divide,
    local_parameters,
    shared,
    take_part,
)
from hpctrain.parallel.tensor_parallel import TensorParallel
from hpctrain.parallel.together import Combine

__all__ = [
    "Made", "Parts", "agree_on", "connected", "facts_of", "made_hollow", "model_of", "parts_of",
    "state_of", "step_of",
]  # fmt: skip

Specs = tuple[Any, Any]


class Parts(NamedTuple):
    """A model as one rank has it, without memory for its parameters.

    Attributes
    ----------
    goal : Objective
    parameters : mapping of str to Parameter
        This rank's parts, or the whole ones if each rank has whole layers.
    settle : callable
        Gives those of the names that it is handed memory and their values, which depend on
        seed and name alone.
    division : Division or None
        How the layers are shared, if they are.
    """

    goal: Objective
    parameters: Mapping[str, Any]
    settle: Callable[[Collection[str]], None]
    division: Division | None = None


class Made(NamedTuple):
    """A model without memory for its parameters, and in which dtype each is to be drawn."""

    goal: Objective
    parameters: Mapping[str, Any]
    drawn: Mapping[str, Any]


def made_hollow(
    config: Config,
    world: World,
    loader: Any,
    device: Device,
    together: Combine | None = None,
) -> Made:
    """Make the model without memory for its parameters; collective."""
    drawn: dict[str, Any] = {}

    def start(net: Block) -> None:
        parameters = net.collect_params()
        drawn.update(start_hollow(parameters, device, config.run.seed, config.device.dtype))

    net, goal = agreed(
        world.control, lambda: build.objective(config, loader, device, together, start)
    )
    parameters = net.collect_params()
    for name in drawn:
        hollow(parameters[name])
    return Made(goal, parameters, drawn)


def parts_of(
    config: Config, world: World, mesh: Mesh, made: Made, place: Any, specs: Specs
) -> Parts:
    """Divide a model over the team of this rank, if it has one; collective.

    Parameters
    ----------
    config, world, mesh, made
    place : Place
        Of `hpctrain.cli.pipeline`.
    specs : (specs of the inputs, specs of the targets)
        Of the largest batch that goes through it at once.
    """
    goal, whole, drawn = made
    seed, device = config.run.seed, place.device
    if mesh.shape.tensor == 1:
        return Parts(goal, whole, lambda mine: settle(whole, drawn, mine, device, seed))
    log = place.noted.among(mesh.tensor, "rounds")
    team = Team(mesh.tensor, PAUSE_S if place.cores < 1 else 0.0, log)
    division = agreed(
        world.control,
        lambda: divide(goal, whole, specs, team, device, config.parallel.sequence),
    )
    mine = local_parameters(whole, division, team, device)

    def settled(names: Collection[str]) -> None:
        for name in whole:
            if name in names and name in drawn:
                fill(whole[name], device, seed, name, drawn[name])
            if name in names:
                array = whole[name].data().asnumpy()
                take_part(mine[name], array, division.cut_of(name), team)
            hollow(whole[name])

    tensors, own = ([p.data() for p in found.values()] for found in (whole, mine))
    return Parts(shared(goal, tensors, own, division, team), mine, settled, division)


def step_of(  # noqa: PLR0913 (the parts that meet here)
    config: Config,
    world: World,
    mesh: Mesh,
    lanes: engine.Engine,
    loader: Any,
    place: Any,
    facts: Callable[[Config, Any], dict[str, str]],
) -> tuple[TensorParallel, Evaluator]:
    """Build this rank's part of a model that is in no stages, and its step; collective."""
    room = Room(world, config)
    parts = model_of(config, room, mesh, loader, place)
    state = state_of(config, mesh, parts, place)
    agree_on(facts(config, state), world, mesh)
    state.broadcast(world.control)
    schedule = build.schedule(config, build.steps_per_epoch(config, loader.plan))
    step = connected(config, world, mesh, lanes, (parts.goal, state), place, schedule)
    step.prepare(*_specs(loader, mesh))
    room.planned(step)

    def most(pieces: int) -> int:
        found = np.array([pieces])
        mesh.tensor.allreduce(found, "max")
        return int(found[0])

    options = step.options
    budget = options.memory.budget
    return step, Evaluator(parts.goal, state, options.fuse, budget, agree=most)


def _specs(loader: Any, mesh: Mesh) -> Specs:
    """Return the specs of the largest batch of a replica."""
    share = part(loader.plan.batch, 0, mesh.shape.data)
    return batch_specs(loader, share.stop - share.start)


def model_of(config: Config, room: Room, mesh: Mesh, loader: Any, place: Any) -> Parts:
    """Divide the model over the team, and give this rank's parts their values; collective."""
    made = made_hollow(config, room.world, loader, place.device)
    parts = parts_of(config, room.world, mesh, made, place, _specs(loader, mesh))
    summed = config.data.accumulate > 1
    room.state = state_bytes(parts.parameters, config, mesh.shape.data, summed)
    room.check(room.state)
    parts.settle(set(parts.parameters))
    return parts


def connected(  # noqa: PLR0913 (the parts that meet here)
    config: Config,
    world: World,
    mesh: Mesh,
    lanes: engine.Engine,
    made: tuple[Objective, MeshState],
    place: Any,
    schedule: Schedule,
) -> TensorParallel:
    """Connect the replicas of each part, and make the step, to be prepared; collective."""
    pause_s = PAUSE_S if place.cores < 1 else 0.0
    options = build.options(config, overlaps(place.traffic, world, place.cores), pause_s)
    way = way_of(place.traffic, world, made[1], options, group=mesh.data)
    way = replace(way, log=place.noted.among(mesh.data, "slices", by_step=True))
    (goal, state), optimizer = made, build.optimizer(config)
    return TensorParallel(goal, state, optimizer, schedule, lanes, mesh, options, way)


def state_of(config: Config, mesh: Mesh, parts: Parts, place: Any) -> MeshState:
    """Put this rank's parts of a model into flat buffers."""
    assert parts.division is not None, "a team shares the layers"
    parameters = parts.parameters
    whole = whole_of(parts.division, parameters)
    slice_bytes = place.traffic.slice_bytes(parameters)
    return MeshState(whole, parameters, build.optimizer(config), mesh, slice_bytes)


def agree_on(found: dict[str, str], world: World, mesh: Mesh) -> None:
    """Compare what must be equal on all ranks, and parameters among those with the same."""
    digest = found.pop("parameters at the start")
    agree(world.control, found)
    agree(mesh.data, {"parameters at the start": digest})


def facts_of(step: Any) -> dict[str, Any]:
    """Return what there is to say about a run whose layers are shared; nothing for others."""
    if not isinstance(step, TensorParallel):
        return {}
    shape, state = step.mesh.shape, step.state
    assert isinstance(state, MeshState), "a team has parts of a model"
    every = [state.whole.specs[name].size for name in state.names]
    cut = sum(state.whole.cuts[name] is not None for name in state.names)
    return {
        "mesh": f"{shape.data} replica(s) x {shape.tensor} ranks that share layers",
        "parameters": sum(every),
        "shared": f"{cut} of {len(every)} parameters; this rank has {sum(state.flat.sizes)} "
        f"of {sum(every)} elements",
    }
