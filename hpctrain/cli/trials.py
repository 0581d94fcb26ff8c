"""Steps that are timed to tune a run, with whole models or on a mesh; nothing is learned."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from hpctrain import engine
from hpctrain.cli import build, pipeline, tensor
from hpctrain.cli.exchange import OPEN, Traffic, lanes_for, overlaps, way_of
from hpctrain.cli.pace import pace
from hpctrain.cli.room import Room
from hpctrain.comm.mesh import Mesh
from hpctrain.comm.world import World
from hpctrain.config import Config
from hpctrain.errors import ConfigError
from hpctrain.io import Loader
from hpctrain.optim import Constant, Optimizer
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.pipeline import Pipeline
from hpctrain.parallel.program import Objective
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.tensor_parallel import TensorParallel
from hpctrain.parallel.ways import Way
from hpctrain.parallel.work import Options, Work

__all__ = ["SETTINGS", "Bench", "MeshBench", "batch_of"]

SETTINGS = ("path", "overlap", "slice_mib", "in_flight")
"""What there is to try of the exchange of gradients, one after the other."""
STEPS, WARM_UP = 15, 6
_STILL = Constant(base_lr=0.0)


def batch_of(loader: Loader) -> Work:
    """Return this rank's part of the first batch of a run, with arrays of its own."""
    batch = next(iter(loader.epoch(0, 0)))
    return Work(
        [array.copy() for array in batch.inputs],
        [array.copy() for array in batch.targets],
        batch.count,
        batch.global_count,
        batch.row,
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """What trials are made with: the model, its optimizer, and this rank's part of a batch."""

    world: World
    objective: Objective
    parameters: Any
    optimizer: Optimizer
    options: Options
    cores: float
    part: Work
    settings: tuple[str, ...] = SETTINGS
    alone: bool = True
    """Whether a step can be timed without any exchange."""

    def step_s(self, traffic: Traffic | None) -> float:
        """Return the time of a step, without any exchange for None; collective."""
        nbytes = (traffic or Traffic(slice_mib=1.0)).slice_bytes(self.parameters)
        state = ModelState(self.parameters, self.optimizer, nbytes)
        world, options, way = self.world, self.options, Way(None, None)
        if traffic is not None:
            options = replace(options, overlap=overlaps(traffic, world, self.cores))
            way = way_of(traffic, world, state, options)
        with engine.create(lanes=lanes_for(traffic or Traffic()), run_ahead=4096) as lanes:
            step = DataParallel(
                self.objective, state, self.optimizer, _STILL, lanes, world.control, options,
                way,
            )  # fmt: skip
            step.prepare(*self.part.specs())
            return _timed(step, state, self.part, world)


class MeshBench:
    """The same where ranks share one model: stages, teams, and replicas of them.

    Parameters
    ----------
    config : Config
    world : World
    mesh : Mesh
    loader : Loader
        Of this rank's replica.
    place : Place
        With the settings to begin with.

    Attributes
    ----------
    settings : tuple of str
        What can be tried here: of the exchange where there are several replicas, and the
        schedule of a pipeline.

    Notes
    -----
    The model of the trials is made as that of the run is, cut into the same number of stages
    by the same rules, and dropped with this object.
    """

    alone = False

    def __init__(
        self, config: Config, world: World, mesh: Mesh, loader: Loader, place: pipeline.Place
    ) -> None:
        self.world, self._config, self._mesh, self._place = world, config, mesh, place
        self._loader, self._room = loader, Room(world, config)
        self.part = batch_of(loader)
        self.options = build.options(config, False, place.pause_s)
        staged, several = mesh.shape.pipeline > 1, mesh.shape.data > 1
        self.settings = ("schedule",) * staged + SETTINGS * several
        self._made: Any = None
        self._schedule = ""

    @property
    def open(self) -> bool:
        """Whether there is anything to try."""
        set_ = self._config.parallel.schedule != OPEN
        return any(name != "schedule" or not set_ for name in self.settings)

    def facts(self) -> Mapping[str, Any]:
        """Return what the answer depends on beside what it does for whole models."""
        parallel = self._config.parallel
        return {
            "mesh": list(self._mesh.shape),
            "layout": str(pipeline.layout_of(self._config)),
            "shared": [parallel.sequence, parallel.sync_bn],
        }

    def step_s(self, traffic: Traffic) -> float:
        """Return the time of a step; for ever where it does not fit into memory; collective."""
        place = self._place._replace(traffic=traffic)
        wire = pipeline.lanes(self._config, traffic.eager_s)
        with ExitStack() as stack:
            lanes = stack.enter_context(
                engine.create(lanes={**lanes_for(traffic), **wire}, run_ahead=4096)
            )
            step = self._step(lanes, place)
            stack.callback(step.free)
            try:
                step.prepare(*self.part.specs())
                self._room.planned(step)
            except ConfigError:
                if not self._schedule_is_tried(traffic):
                    raise
                return inf
            return _timed(step, step.state, self.part, self.world)

    def _schedule_is_tried(self, traffic: Traffic) -> bool:
        return OPEN == self._config.parallel.schedule != traffic.schedule

    def _step(self, lanes: engine.Engine, place: pipeline.Place) -> Pipeline | TensorParallel:
        """Make the step of this rank; the model only once."""
        where = self._config, self.world, self._mesh, lanes
        if self._mesh.shape.pipeline == 1:
            if self._made is None:
                size = self._config, self._room, self._mesh, self._loader, place
                self._made = tensor.model_of(*size)
            shared = tensor.state_of(self._config, self._mesh, self._made, place)
            return tensor.connected(*where, (self._made.goal, shared), place, _STILL)
        self._cut(place)
        staged = pipeline.state_of(self._config, self._mesh, self._made, place)
        return pipeline.connected(*where, (self._made[0], staged), place, _STILL)

    def _cut(self, place: pipeline.Place) -> None:
        """Make the model in stages, anew if the cut may depend on another schedule."""
        schedule = place.traffic.schedule
        if self._made is not None and schedule != self._schedule:
            if self._config.parallel.balance == "memory":
                self._made = None
            else:
                self._made[0].layout = pipeline.layout_of(self._config, schedule)
        if self._made is None:
            size = self._config, self._room, self._mesh, self._loader, place
            self._made = pipeline.model_of(*size)
        self._schedule = schedule


def _timed(step: DataParallel, state: ModelState, part: Work, world: World) -> float:
    """Return the time of a step, and leave its path and all state; collective."""
    kept = {name: tensor.value.copy() for name, tensor in state.fixed.items()}
    found = pace(step, part, world.control, STEPS, WARM_UP)
    for name, tensor_ in state.fixed.items():
        tensor_.value[...] = kept[name]
    state.leave()
    step.way.free()
    return found.step_s
