"""A workload on a mesh of ranks, as a run has it: replicas, stages and teams in any mixture."""

from typing import Any

import numpy as np

from hpctrain import backend, engine, optim
from hpctrain.cli import build
from hpctrain.cli import pipeline as stages
from hpctrain.cli.exchange import PAUSE_S, Traffic, lanes_for, overlaps, settled, way_of
from hpctrain.cli.stages import micro_specs, specs_of
from hpctrain.cli.tensor import Made, Parts, parts_of
from hpctrain.comm.mesh import Mesh
from hpctrain.comm.world import World
from hpctrain.config import Config
from hpctrain.models.workloads import Workload
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.hollow import start_hollow
from hpctrain.parallel.mesh_state import MeshState, whole_of
from hpctrain.parallel.pipeline import Pipeline, summing
from hpctrain.parallel.program import Objective
from hpctrain.parallel.stage_state import StageState
from hpctrain.parallel.staged import StagedModel
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.tensor_parallel import TensorParallel
from hpctrain.parallel.work import Work

__all__ = ["OnMesh", "lanes_of", "place_of"]

_SCHEDULE = optim.Constant(base_lr=1e-3)


def place_of(config: Config, world: World, cores: float) -> stages.Place:
    """Return where this rank computes, of whose cores it has so many; collective."""
    device = backend.choose(local_rank=world.local_rank)
    replicas = world.size // (config.parallel.pipeline * config.parallel.tensor)
    traffic = settled(Traffic.of(config), world, cores, replicas)
    return stages.Place(device, cores, None, traffic)


def lanes_of(config: Config, place: stages.Place) -> engine.Engine:
    """Make the engine for steps of ``config``."""
    lanes = {**lanes_for(place.traffic), **stages.lanes(config, place.traffic.eager_s)}
    return engine.create(lanes=lanes, run_ahead=4096)


class OnMesh:
    """The training step of this rank, with all that it stands on; a context manager.

    Parameters
    ----------
    work : Workload
        Its net without values; its batch is that of a replica.
    config : Config
        Mesh, schedule, optimizer and memory are looked at. Collective over all ranks.
    world : World
    place : Place
    lanes : Engine
        See `lanes_of`.

    Attributes
    ----------
    step : DataParallel
        Ready for `part`.
    part : Work
        This rank's share of a batch of made-up samples.
    mesh : Mesh
    parts : Parts
        With the parameters of this rank.
    """

    def __init__(
        self,
        work: Workload,
        config: Config,
        world: World,
        place: stages.Place,
        lanes: engine.Engine,
    ) -> None:
        self.work, self.config, self.world = work, config, world
        self.traffic, self._place, self._lanes = place.traffic, place, lanes
        p = config.parallel
        self.mesh = Mesh(world.group, None, p.pipeline, p.tensor)
        pause_s = PAUSE_S if place.cores < 1 else 0.0
        overlap = overlaps(place.traffic, world, place.cores)
        self.options = build.options(config, overlap, pause_s)
        self.step = self._made()
        inputs, labels = work.make(np.random.default_rng(self.mesh.place.data))
        total = work.batch * self.mesh.shape.data
        self.part = Work((inputs,), (labels,), work.batch, total)
        self.step.prepare(*self.part.specs())

    def __enter__(self) -> "OnMesh":
        return self

    def __exit__(self, *problem: Any) -> None:
        if problem[0] is None:
            self._lanes.wait_all()
            if isinstance(self.step, Pipeline | TensorParallel):
                self.step.free()
            self.step.way.free()
            self.mesh.free()

    def _made(self) -> DataParallel:
        config, mesh, world, device = self.config, self.mesh, self.world, self._place.device
        whole = self.work.net.collect_params()
        drawn = start_hollow(whole, device, config.run.seed, config.device.dtype)
        goal = Objective(self.work.net, self.work.loss, narrow=self.work.narrow)
        specs, layout = specs_of(self.work), stages.layout_of(config)
        if layout.ranks > 1:
            specs = micro_specs(specs, layout.micro_batches, self.work.batch_axis)
        made = Made(goal, whole, drawn)
        self.parts = parts_of(config, world, mesh, made, self._place, specs)
        if layout.ranks == 1:
            self.parts.settle(set(whole))
            return self._team() if mesh.shape.tensor > 1 else self._replica()
        timed = layout.balance == "time"
        goal, parameters = self.parts.goal, self.parts.parameters
        model = StagedModel(goal, parameters, layout, specs, world.control, device, timed)
        mine = {name for name in parameters if mesh.place.pipeline in model.homes(name)}
        self.parts.settle(mine)
        return self._stages(model)

    def _stages(self, model: StagedModel) -> Pipeline:
        parts, optimizer, mesh = self.parts, build.optimizer(self.config), self.mesh
        nbytes = self.traffic.slice_bytes(parts.parameters)
        state = StageState(model, parts.parameters, optimizer, mesh, nbytes, parts.division)
        options = self.options
        way = way_of(self.traffic, self.world, state, summing(options), group=mesh.data)
        rest = self._lanes, mesh, options, way, self.work.batch_axis
        return Pipeline(model, state, optimizer, _SCHEDULE, *rest)

    def _team(self) -> TensorParallel:
        parts, optimizer, mesh = self.parts, build.optimizer(self.config), self.mesh
        state = MeshState(*self._whole(parts), optimizer, mesh, self._slice_bytes())
        way = way_of(self.traffic, self.world, state, self.options, group=mesh.data)
        rest = self._lanes, mesh, self.options, way
        return TensorParallel(parts.goal, state, optimizer, _SCHEDULE, *rest)

    def _replica(self) -> DataParallel:
        parts, optimizer = self.parts, build.optimizer(self.config)
        state = ModelState(parts.parameters, optimizer, self._slice_bytes())
        way = way_of(self.traffic, self.world, state, self.options)
        rest = self._lanes, self.mesh.data, self.options, way
        return DataParallel(parts.goal, state, optimizer, _SCHEDULE, *rest)

    def _slice_bytes(self) -> int:
        return self.traffic.slice_bytes(self.parts.parameters)

    @staticmethod
    def _whole(parts: Parts) -> tuple[Any, Any]:
        assert parts.division is not None, "a team shares the layers"
        return whole_of(parts.division, parts.parameters), parts.parameters
