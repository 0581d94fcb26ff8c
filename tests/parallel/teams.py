"""Training by teams that share layers, in replicas and stages, and the whole they make."""

from contextlib import ExitStack

import numpy as np
from replicas import SCHEDULE
from staged_runs import LANES, collect, listed, share_of, work_of

from hpctrain import models
from hpctrain.comm.mesh import Mesh
from hpctrain.comm.team import Team
from hpctrain.engine import create
from hpctrain.parallel.mesh_state import MeshState, whole_of
from hpctrain.parallel.micro import most_samples
from hpctrain.parallel.pieces import of_samples
from hpctrain.parallel.pipeline import Pipeline
from hpctrain.parallel.program import Objective, count_correct
from hpctrain.parallel.shared_model import divide, local_parameters, shared, take_part
from hpctrain.parallel.stage_state import StageState
from hpctrain.parallel.staged import StagedModel
from hpctrain.parallel.tensor_parallel import TensorParallel
from hpctrain.parallel.work import Options

SIZES = {
    "mlp": {"inputs": 12, "hidden": (16, 16), "classes": 5},
    "lenet": {"size": 16, "dropout": 0.5},
    "gpt": {"vocab": 17, "width": 16, "heads": 4, "depth": 2, "steps": 6},
    "resnet20": {"depth": 8, "size": 8},
    "lstm": {"vocab": 11, "width": 8, "steps": 5},
    "cosmo": {"size": 8, "channels": (2, 3, 4, 5)},
}


class Zoo:
    """A model of the zoo in float64, as the helpers of other tests take one."""

    def __init__(self, name, batch=6):
        self.work = models.workload(name, batch, **SIZES[name])
        self.work.net.initialize(seed=1)
        self.work.net.cast("float64")
        self.parameters = dict(self.work.net.collect_params())
        count = None if name == "cosmo" else count_correct
        self.objective = Objective(self.work.net, self.work.loss, count)

    def data(self, steps, seed=5):
        rng = np.random.default_rng(seed)
        made = (self.work.make(rng) for _ in range(steps))
        return [tuple(a.astype("f8") if a.dtype == "f4" else a for a in b) for b in made]


def divided(model, team, specs, sequence=True):
    """The objective of this rank's part of a model, its parameters, and the division."""
    division = divide(model.objective, model.parameters, specs, team, sequence=sequence)
    mine = local_parameters(model.parameters, division, team)
    for name, part in mine.items():
        array = model.parameters[name].data().asnumpy()
        take_part(part, array, division.cut_of(name), team)
    goal = model.objective
    whole = [p.data() for p in model.parameters.values()]
    parts = [p.data() for p in mine.values()]
    return shared(goal, whole, parts, division, team), mine, division


def by_team(
    model, optimizer, data, group, tensor, layout=None, options=None, slice_bytes=2**20,
    first=0, load=None,
):  # fmt: skip
    """Train on all ranks of ``group``; return results and the state of the whole on rank 0.

    The first step has the number ``first``; ``load`` is the state to begin with, on rank 0.
    """
    options, steps, stages = options or Options(), listed(data), layout.ranks if layout else 1
    with ExitStack() as stack:
        mesh = stack.enter_context(Mesh(group, pipeline=stages, tensor=tensor))
        team = Team(mesh.tensor, 5e-5)
        engine = stack.enter_context(create("threaded", LANES))
        share = share_of(steps[0][0], mesh)
        specs = (share if share.count else work_of(steps[0][0])).specs()
        parts = divided(model, team, specs)
        make = _in_stages if layout else _in_teams
        step = make(parts, optimizer, mesh, engine, options, slice_bytes, (layout, specs))
        if load is not None:
            restore(step.state, group, load)
        step.begin_at(first)
        step.prepare(*specs)
        results = collect(step, steps, lambda batch: share_of(batch, mesh))
        found = {n: a.copy() for n, a in step.state.gathered(group).items()}
        step.free()
        team.free()
        step.way.free()
        return results, found


def restore(state, group, arrays):
    """Load what rank 0 has, and hand it out."""
    if group.rank == 0:
        state.load({k: a for k, a in arrays.items() if not k.startswith("ranks/")})
    state.broadcast(group, arrays)


def _in_stages(parts, optimizer, mesh, engine, options, slice_bytes, sizes):
    (goal, mine, division), (layout, specs) = parts, sizes
    most = most_samples(specs[0][0].shape[0], layout.micro_batches)
    small = tuple(of_samples(s, most) for s in specs)
    whole = StagedModel(goal, mine, layout, small, mesh.whole)
    state = StageState(whole, mine, optimizer, mesh, slice_bytes, division)
    return Pipeline(whole, state, optimizer, SCHEDULE, engine, mesh, options)


def _in_teams(parts, optimizer, mesh, engine, options, slice_bytes, _):
    goal, mine, division = parts
    state = MeshState(whole_of(division, mine), mine, optimizer, mesh, slice_bytes)
    return TensorParallel(goal, state, optimizer, SCHEDULE, engine, mesh, options)
