"""Batch statistics over the replicas of a pipeline, of all micro-batches of one number."""

import numpy as np
import pytest
from replicas import SCHEDULE, Model, batches
from staged_runs import staged

from hpctrain import nn
from hpctrain.autograd import Tensor
from hpctrain.comm.mesh import shape_of
from hpctrain.engine import create
from hpctrain.io.sampler import part
from hpctrain.nn import convert_sync_batch_norm
from hpctrain.optim import SGD
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.micro import micro_batches, micros_of_step
from hpctrain.parallel.staged import Layout
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.together import Combine
from hpctrain.parallel.work import Options, Work

SGDM = SGD(momentum=0.9, weight_decay=0.01)
SIZES = (13, 7, 1, 5, 2, 11)  # with fewer samples than replicas, and uneven shares of all


def normed():
    """Two convolutions and a dense layer, each with a batch normalisation behind it."""
    net = nn.HybridSequential()
    for channels in (3, 4):
        net.add(nn.Conv2D(channels, 2, layout="NHWC"), nn.BatchNorm(axis=-1))
        net.add(nn.Activation("relu"))
    net.add(nn.Flatten(), nn.Dense(6), nn.BatchNorm(), nn.Dense(5))
    net.initialize(seed=3)
    net.cast(np.float64)
    net(Tensor(np.zeros((1, 5, 4, 2))))
    return Model(net.collect_params(), net)


def unions(steps, micro, replicas):
    """What one rank does: for each micro-batch of a replica those of all replicas together."""
    found = []
    for batch in steps:
        x, y = batch
        shares = []
        for rank in range(replicas):
            mine = part(len(x), rank, replicas)
            work = Work([x[mine]], [y[mine]], mine.stop - mine.start, len(x), mine.start)
            shares.append(micro_batches(work, micro))
        number = max(map(len, shares))
        rows = [[share[i] for share in shares if i < len(share)] for i in range(number)]
        pairs = [[(w.inputs[0], w.targets[0]) for w in row] for row in rows]
        found.append([tuple(map(np.concatenate, zip(*row, strict=True))) for row in pairs])
    return found


def alone(world, steps):
    """Train on one rank, adding up; return results and arrays."""
    model, own = normed(), world.split(world.rank)
    options = Options(accumulate=max(2, *map(len, steps)))
    with own, create("serial") as engine:
        state = ModelState(model.parameters, SGDM)
        step = DataParallel(model.objective, state, SGDM, SCHEDULE, engine, own, options)
        works = [[Work([x], [y], len(x), len(x)) for x, y in parts] for parts in steps]
        step.prepare(*works[0][0].specs())
        results = [step.result(step.step(*parts)) for parts in works]
        return results, {name: a.copy() for name, a in state.arrays().items()}


def together(world, layout, data, options=None, kind="threaded"):
    model, made = normed(), []

    def meet(mesh):
        made.append(Combine(mesh.data, 1e-4))
        convert_sync_batch_norm(model.net, made[0])
        model.together = made[0]

    found = staged(model, SGDM, data, world, layout, options, kind, 256, meet=meet)
    made[0].free()
    return found


@pytest.mark.parametrize(
    ("kind", "chunks", "overlap"),
    [("1f1b", 1, False), ("zero_bubble", 1, True), ("interleaved", 2, True)],
)
def test_replicas_in_stages_normalise_together(world, kind, chunks, overlap):
    if world.size == 1 and chunks > 1:
        pytest.skip("one rank has no use for chunks")
    stages = 2 if world.size % 2 == 0 else 1 if chunks == 1 else world.size
    data = batches([(n, 5, 4, 2) for n in SIZES])
    replicas = shape_of(world.size, pipeline=stages).data
    wanted, reference = alone(world, unions(data, 3, replicas))

    layout = Layout(stages, kind, 3, chunks, "params")
    results, arrays, _ = together(world, layout, data, Options(overlap=overlap))

    for result, other in zip(results, wanted, strict=True):
        assert result.loss_sum == pytest.approx(other.loss_sum, rel=1e-10)
        assert (result.correct, result.count) == (other.correct, other.count)
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            np.testing.assert_allclose(array, reference[name], 1e-9, 1e-11, err_msg=name)


@pytest.mark.serial
def test_a_replica_makes_up_the_micro_batches_that_only_others_have():
    x, y = np.ones((5, 3)), np.zeros(5, np.int64)
    first = Work([x[:3]], [y[:3]], 3, 5, 0)
    second = Work([x[3:]], [y[3:]], 2, 5, 3)
    nothing = Work([x[:0]], [y[:0]], 0, 1, 1)

    counts = [
        [micro.count for micro in micros_of_step([*works], 4, replicas=2)]
        for works in ([first], [second], [second, nothing])
    ]

    assert counts == [[1, 1, 1], [1, 1, 0], [1, 1, 0, 0]]
