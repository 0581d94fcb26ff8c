"""A workload in stages: as a pipeline over ranks, or stage by stage on one, to be timed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hpctrain import backend, models, optim
from hpctrain.autograd import Spec
from hpctrain.cli.exchange import Traffic, way_of
from hpctrain.comm.mesh import Mesh
from hpctrain.comm.world import World
from hpctrain.engine import Engine
from hpctrain.models.workloads import Workload
from hpctrain.parallel.hollow import settle, start_hollow
from hpctrain.parallel.pieces import of_samples
from hpctrain.parallel.pipeline import Pipeline, summing
from hpctrain.parallel.pipeline_stages import RankStages
from hpctrain.parallel.pipeline_times import Times
from hpctrain.parallel.program import Objective
from hpctrain.parallel.stage_state import StageState
from hpctrain.parallel.stage_times import Seconds, stage_seconds
from hpctrain.parallel.staged import Layout, Specs, StagedModel
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import Options

__all__ = ["DEEP", "SGDM", "pipeline_of", "specs_of", "times_of_stages", "work_of"]

SGDM = optim.SGD(momentum=0.9)
DEEP = "deep"  # an mlp of equal layers, whose stages are balanced


def work_of(name: str, batch: int, layers: int = 8, width: int = 1024) -> Workload:
    """Return a workload of the zoo, or ``deep``: an mlp of equal layers, as many classes."""
    if name != DEEP:
        return models.workload(name, batch)
    sizes = (width,) * (layers - 1)
    return models.workload("mlp", batch or 512, inputs=width, hidden=sizes, classes=width)


def pipeline_of(  # noqa: PLR0913 (the parts that meet here)
    work: Workload,
    world: World,
    mesh: Mesh,
    lanes: Engine,
    layout: Layout,
    traffic: Traffic,
    options: Options,
) -> Pipeline:
    """Build the step of a rank of a pipeline; each has its own parameters alone. Collective."""
    device = backend.choose(local_rank=world.local_rank)
    parameters = work.net.collect_params()
    drawn = start_hollow(parameters, device, 0, "float32")
    specs = specs_of(work)
    goal = Objective(work.net, work.loss)
    model = _cut(goal, parameters, specs, work.batch_axis, layout, world, device)
    mine = {name for name in parameters if mesh.place.pipeline in model.homes(name)}
    settle(parameters, drawn, mine, device, 0)
    state = StageState(model, parameters, SGDM, mesh, traffic.slice_bytes(parameters))
    way = way_of(traffic, world, state, summing(options), group=mesh.data)
    schedule = optim.Constant(base_lr=1e-3)
    step = Pipeline(model, state, SGDM, schedule, lanes, mesh, options, way, work.batch_axis)
    step.prepare(*specs)
    return step


def _cut(  # noqa: PLR0913 (what a cut depends on)
    goal: Objective,
    parameters: Mapping[str, Any],
    specs: Specs,
    axis: int,
    layout: Layout,
    world: World | None = None,
    device: backend.Device = backend.CPU,
) -> StagedModel:
    group = None if world is None else world.control
    micro = micro_specs(specs, layout.micro_batches, axis)
    timed = layout.balance == "time"
    return StagedModel(goal, parameters, layout, micro, group, device, timed)


def specs_of(work: Workload) -> Specs:
    """Return the specs of inputs and targets of a batch."""
    inputs, targets = work.make(np.random.default_rng(0))
    return (Spec.of(inputs),), (Spec.of(targets),)


def micro_specs(specs: Specs, count: int, axis: int) -> Specs:
    """Return the specs of the largest of ``count`` micro-batches."""
    samples = -(-specs[0][0].shape[axis] // count)
    inputs, targets = (of_samples(s, samples, axis) for s in specs)
    return inputs, targets


def times_of_stages(
    goal: Objective,
    parameters: Mapping[str, Any],
    specs: Specs,
    axis: int,
    layout: Layout,
    fuse: bool = False,
) -> tuple[StagedModel, Times]:
    """Cut a model, and measure all of its stages on this rank, one after the other.

    Parameters
    ----------
    goal : Objective
    parameters : mapping of str to Parameter
        Of the whole model, with values.
    specs : (specs of the inputs, specs of the targets)
        Of a batch that is cut into ``layout.micro_batches``.
    axis : int
        That counts samples.
    layout : Layout
        For any number of ranks.
    fuse : bool

    Notes
    -----
    Needs memory for the whole model, without optimizer.
    """
    model = _cut(goal, parameters, specs, axis, layout)
    state = ModelState(parameters, optim.SGD())
    inputs, targets = micro_specs(specs, layout.micro_batches, axis)
    found: dict[int, Seconds] = {}
    for rank in range(layout.ranks):
        stages = RankStages(model, state, rank, fuse)
        stages.make_room(replace(layout, times=None).plan(1))
        bound = stages.bound((inputs, targets))
        found.update(stage_seconds(bound, [*inputs, *targets], state))
    f, b, w = (tuple(found[number][kind] for number in sorted(found)) for kind in range(3))
    return model, Times(f, b, w)
