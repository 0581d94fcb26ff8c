"""Training in a pipeline, and its serial twin: one rank that accumulates over micro-batches."""

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from mpi4py import MPI
from replicas import SCHEDULE, Model, mlp, parameters

from hpctrain import ops
from hpctrain.comm.group import Group
from hpctrain.comm.mesh import Mesh
from hpctrain.engine import DEFAULT_LANES, create
from hpctrain.graph.marks import marked
from hpctrain.io.sampler import part
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.micro import micro_batches, most_samples
from hpctrain.parallel.pieces import of_samples
from hpctrain.parallel.pipeline import Pipeline, summing
from hpctrain.parallel.pipeline_recipe import wire_lane
from hpctrain.parallel.stage_state import StageState
from hpctrain.parallel.staged import StagedModel
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.ways import connect
from hpctrain.parallel.work import LAG, Options, Work

LANES = {**DEFAULT_LANES, "wire": wire_lane(4, 5e-5)}


def tied_model():
    """A table that is read first and last, a skip over the middle, and groups a, b, c."""
    model = Model(parameters({"table": (5, 6), "w": (6, 6), "b": (6,)}), None)

    def net(x):
        t = model.tensor
        with marked(ctx_group="a"):
            first = ops.dense(x, ops.transpose(t("table"), (1, 0)) @ t("table"))
        with marked(ctx_group="b"):
            h = ops.tanh(ops.dense(first, t("w"), t("b")))
        with marked(ctx_group="c"):
            return ops.dense(h + first, t("table"))

    model.net = net
    return model


def split_mlp():
    """The MLP in one group; in the other nothing but its softmax and loss."""
    model = mlp()
    inner = model.net

    def net(x):
        with marked(ctx_group="net"):
            y = inner(x)
        with marked(ctx_group="loss"):
            return ops.tanh(y)

    model.net = net
    return model


def work_of(batch):
    *inputs, labels = batch
    return Work(list(inputs), [labels], len(labels), len(labels), 0)


def share_of(batch, mesh, unit=1):
    """The part of a batch for one replica."""
    total, group = len(batch[0]), mesh.data
    mine = part(total, group.rank, group.size, unit)
    *inputs, labels = (np.ascontiguousarray(a[mine]) for a in batch)
    return Work(inputs, [labels], len(labels), total, mine.start)


def collect(step, steps, share):
    pending, results = [], []
    for batches in steps:
        pending.append(step.step(*(share(batch) for batch in batches)))
        if len(pending) > LAG:
            results.append(step.result(pending.pop(0)))
    results += [step.result(number) for number in pending]
    step.engine.wait_all()
    return results


def listed(data):
    return [batch if isinstance(batch, list) else [batch] for batch in data]


def twin(model, optimizer, data, micro, options=None):
    """Train on one rank, adding up the same micro-batches; return results and arrays."""
    steps = listed(data)
    cut = [[m for b in batches for m in micro_batches(work_of(b), micro)] for batches in steps]
    most = max(map(len, cut))
    alone = Group(MPI.COMM_SELF.Dup())
    options = replace(options or Options(), accumulate=max(2, most))
    with alone, create("serial") as engine:
        state = ModelState(model.parameters, optimizer)
        step = DataParallel(model.objective, state, optimizer, SCHEDULE, engine, alone, options)
        step.prepare(*cut[0][0].specs())
        results = []
        for works in cut:
            parts = [replace(w, row=0, global_count=w.count) for w in works]
            results.append(step.result(step.step(*parts)))
        return results, {n: a.copy() for n, a in state.arrays().items()}


def staged(
    model, optimizer, data, group, layout, options=None, kind="threaded", slice_bytes=2**20,
    path=None, meet=None,
):  # fmt: skip
    """Train in pipelines on all ranks of ``group``; return results, state and the pipeline.

    ``meet`` gets the mesh before anything else.
    """
    options, steps = options or Options(), listed(data)
    unit = options.shard or 1
    with ExitStack() as stack:
        mesh = stack.enter_context(Mesh(group, pipeline=layout.ranks))
        if meet is not None:
            meet(mesh)
        first = share_of(steps[0][0], mesh, unit)
        if not first.count:
            first = work_of(steps[0][0])
        engine = stack.enter_context(create(kind, LANES))
        most = options.shard or most_samples(first.count, layout.micro_batches)
        specs = tuple(of_samples(s, most) for s in first.specs())
        whole = StagedModel(model.objective, model.parameters, layout, specs, mesh.pipeline)
        state = StageState(whole, model.parameters, optimizer, mesh, slice_bytes)
        way = connect(path, mesh.data, state, summing(options)) if path else None
        step = Pipeline(whole, state, optimizer, SCHEDULE, engine, mesh, options, way)
        step.prepare(*first.specs())
        results = collect(step, steps, lambda batch: share_of(batch, mesh, unit))
        state.flat.move(state.flat.weights.copy(), state.flat.grads.copy())
        step.free()
        step.way.free()
        return results, {n: a.copy() for n, a in state.arrays().items()}, step
