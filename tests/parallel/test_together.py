"""Batch statistics over ranks: all is as if one process had the whole batch."""

import numpy as np
import pytest
from replicas import Model, batches, parallel, serial, share, trainer

from hpctrain import nn, ops
from hpctrain.autograd import Spec, Tensor, backward, grad, record
from hpctrain.comm.progress import INSIDE, Log
from hpctrain.engine import create
from hpctrain.errors import ConfigError
from hpctrain.graph.budget import Memory
from hpctrain.graph.execute import Executor
from hpctrain.io.sampler import part
from hpctrain.nn import BatchNorm, convert_sync_batch_norm
from hpctrain.ops.sync_moments import add_parts, merge_moments
from hpctrain.optim import SGD
from hpctrain.parallel.program import StepDefinition, training_plan
from hpctrain.parallel.together import Combine, made_up
from hpctrain.parallel.work import Options, Work

SIZES = (13, 7, 4, 2, 1)  # uneven on 3 ranks; of 2 and 1 some ranks have nothing


@pytest.fixture
def combine(world):
    made = Combine(world)
    yield made
    made.free()


def own(array, world, combine):
    """Return this rank's rows, or one that does not count; and tell ``combine``."""
    mine = np.ascontiguousarray(array[part(len(array), world.rank, world.size)])
    combine.present = len(mine) > 0
    return mine if len(mine) else np.full((1, *array.shape[1:]), 7.0, array.dtype)


def whole(array, total, world, combine):
    """Put the rows of all ranks together again."""
    found = np.zeros((total, *array.shape[1:]), array.dtype)
    if combine.present:
        found[part(total, world.rank, world.size)] = array
    world.allreduce(found)
    return found


def over_ranks(array, world, combine):
    """Sum a gradient over the ranks that have samples."""
    found = array.copy() if combine.present else np.zeros_like(array)
    world.allreduce(found)
    return found


def layer(dtype=np.float64, channels=3):
    net = BatchNorm(axis=-1, in_channels=channels)
    net.initialize()
    net.cast(dtype)
    rng = np.random.default_rng(4)
    for parameter in (net.gamma, net.beta):
        parameter.set_data(rng.standard_normal(channels).astype(dtype))
    return net


def differentiated(net, x, weights):
    """Return output and gradients of a sum of weighted squares, and the running statistics."""
    x = Tensor(x)
    x.attach_grad()
    with record():
        y = net(x)
        loss = ops.sum(ops.square(y) * Tensor(weights))
    loss.backward()
    local = y.asnumpy(), x.grad.asnumpy()
    shared = net.gamma.grad().asnumpy(), net.beta.grad().asnumpy()
    running = net.running_mean.data().asnumpy(), net.running_var.data().asnumpy()
    return local, shared, running


def close(have, want, limit):
    assert have.dtype == want.dtype
    np.testing.assert_allclose(have, want, 0, limit * max(1.0, np.abs(want).max()))


@pytest.mark.parametrize("near", [1, 64], ids=["two rounds", "one round"])
@pytest.mark.parametrize("pause_s", [0.0, 1e-4], ids=["spin", "look"])
def test_all_ranks_get_the_merged_arrays_in_the_same_bits(world, near, pause_s):
    combine = Combine(world, pause_s, near)
    rows = np.random.default_rng(8).standard_normal((world.size, 3, 5))
    rows[:, 0] = np.arange(1, world.size + 1)[:, None]

    merged = combine(rows[world.rank].copy(), merge_moments)
    added = combine(rows[world.rank].copy(), add_parts)

    np.testing.assert_allclose(merged, merge_moments(rows), 1e-13, 1e-13)
    np.testing.assert_allclose(added, rows.sum(0), 1e-13, 1e-13)
    said = world.allgather_obj([merged.tobytes().hex(), added.tobytes().hex()])
    assert said == [said[0]] * world.size
    assert combine.take() > 0
    assert combine.take() == 0
    combine.free()


def test_a_call_is_noted_while_it_waits_for_other_ranks(world):
    log, seen = Log(INSIDE), []

    def merge(rows):
        seen.append(log.oldest().name)
        return rows.sum(0)

    combine = Combine(world, log=log)
    for _ in range(2):
        combine(np.ones(3), merge)

    what = "statistics of a batch over all ranks"
    assert seen == [f"message 1, {what}", f"message 2, {what}"]
    assert log.oldest() is None and log.started == 2
    combine.free()


def test_who_is_not_present_adds_nothing(world, combine):
    combine.present = world.rank == 0

    added = combine(np.full((2, 3), world.rank + 1.0), add_parts)

    np.testing.assert_array_equal(added, 1)


@pytest.mark.parametrize("total", SIZES)
@pytest.mark.parametrize("inner", [(), (4, 5)], ids=["vectors", "images"])
def test_ranks_together_normalise_as_one(world, combine, total, inner):
    rng = np.random.default_rng(total)
    x = rng.standard_normal((total, *inner, 3)) * 2 + 5
    weights = rng.standard_normal(x.shape)
    expected = differentiated(layer(), x, weights)
    net = layer()
    net.synchronise(combine)

    mine = own(x, world, combine)
    local, shared, running = differentiated(net, mine, own(weights, world, combine))

    for have, want in zip(local, expected[0], strict=True):
        close(whole(have, total, world, combine), want, 1e-12)
    for have, want in zip(shared, expected[1], strict=True):
        close(over_ranks(have, world, combine), want, 1e-12)
    for have, want in zip(running, expected[2], strict=True):
        close(have, want, 1e-13)
        assert len(set(world.allgather_obj(have.tobytes().hex()))) == 1


def test_float32_far_from_zero_stays_exact(world, combine):
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((50, 9, 3)) + 1e4).astype(np.float32)
    weights = rng.standard_normal(x.shape).astype(np.float32)
    exact = differentiated(layer(), x.astype(np.float64), weights.astype(np.float64))
    net = layer(np.float32)
    net.synchronise(combine)

    mine = own(x, world, combine)
    (y, dx), shared, _ = differentiated(net, mine, own(weights, world, combine))

    close(whole(y, 50, world, combine), exact[0][0].astype(np.float32), 5e-6)
    close(whole(dx, 50, world, combine), exact[0][1].astype(np.float32), 5e-6)
    for have, want in zip(shared, exact[1], strict=True):
        close(over_ranks(have, world, combine), want.astype(np.float32), 5e-6)


@pytest.mark.parametrize("total", [13, 2])
def test_gradients_of_statistics_and_of_gradients_are_those_of_one(world, combine, total):
    """The loss has all results in it, and the square of a gradient."""
    rng = np.random.default_rng(total)
    x, weights = rng.standard_normal((2, total, 3)) + 1
    vectors = rng.standard_normal((2, 3))

    def found(x, weights, share, **attrs):
        x, (gamma, beta) = Tensor(x), map(Tensor, vectors)
        for tensor in (x, gamma, beta):
            tensor.attach_grad()
        with record():
            y, mean, var = ops.sync_batch_norm(x, gamma, beta, 1e-3, **attrs)
            loss = ops.sum(ops.square(y) * Tensor(weights))
            loss = loss + ops.sum(mean * mean * var) * share
            (dx,) = grad([loss], [x], create_graph=True)
            again = ops.sum(ops.square(dx) * Tensor(weights)) + loss
        backward(again)
        return [t.grad.asnumpy() for t in (x, gamma, beta)]

    expected = found(x, weights, 1.0)
    mine, own_weights = own(x, world, combine), own(weights, world, combine)
    here = sum(world.allgather_obj(combine.present))
    share = 1 / here if combine.present else 0.0
    dx, *shared = found(mine, own_weights, share, combine=combine)

    close(whole(dx, total, world, combine), expected[0], 1e-11)
    for have, want in zip(shared, expected[1:], strict=True):
        close(over_ranks(have, world, combine), want, 1e-11)


def convnet():
    """A small residual network of batch normalisations in parallel branches."""
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, padding=1, layout="NHWC", in_channels=2, use_bias=False))
    net.add(nn.BatchNorm(axis=-1, in_channels=4), nn.Activation("relu"), Branches())
    net.add(nn.GlobalAvgPool2D(layout="NHWC"), nn.Flatten(), nn.Dense(5, in_units=6))
    net.initialize(seed=5)
    net.cast("float64")
    return Model(net.collect_params(), net)


class Branches(nn.HybridBlock):
    """Two convolutions of one input, normalised apart and added."""

    def __init__(self):
        super().__init__()
        for name in ("a", "b"):
            conv = nn.Conv2D(6, 3, 2, 1, layout="NHWC", in_channels=4, use_bias=False)
            setattr(self, f"conv_{name}", conv)
            setattr(self, f"norm_{name}", nn.BatchNorm(axis=-1, in_channels=6))

    def forward(self, x, *args):
        a, b = self.norm_a(self.conv_a(x)), self.norm_b(self.conv_b(x))
        return ops.relu(a) * ops.tanh(b) + ops.relu(b)


def plan(model, count, memory, fuse):
    specs = (Spec((count, 6, 5, 2), np.dtype(float)),), (Spec((count,), np.dtype(np.int64)),)
    parameters = list(model.parameters.values())
    trained = [p.data() for p in parameters if p.grad_req != "null"]
    leaves = [p.data() for p in parameters]
    step = StepDefinition(model.objective, specs, leaves, trained, memory=memory, fuse=fuse)
    return training_plan(step)


@pytest.mark.parametrize("fuse", [False, True], ids=["exact", "fused"])
@pytest.mark.parametrize("memory", [Memory(), Memory("sqrt")], ids=["kept", "again"])
@pytest.mark.parametrize("total", [9, 2])
def test_a_planned_step_is_that_of_one_rank(world, combine, total, memory, fuse):
    (batch,) = batches([(total, 6, 5, 2)])
    results = []
    for group in (None, combine):
        model = convnet()
        work = Work([batch[0]], [batch[1]], total, total)
        if group:
            assert convert_sync_batch_norm(model.net, group) == 3
            mine = part(total, world.rank, world.size)
            arrays = [np.ascontiguousarray(a[mine]) for a in batch]
            work = Work(arrays[:1], arrays[1:], len(arrays[1]), total)
            combine.present = work.count > 0
            work = work if work.count else made_up(work)
        made = plan(model, len(work.targets[0]), memory, fuse)
        outputs = [np.empty(made.graph.specs[v].shape) for v in made.graph.outputs]
        run = Executor(made, [p.data().array for p in model.parameters.values()])
        run([*work.inputs, *work.targets, np.asarray(1 / total)], outputs)
        running = [p.data().asnumpy() for p in model.parameters.values() if "running" in p.name]
        results.append((outputs[2:], running))

    (gradients, running), (shares, together) = results
    assert len(running) == 6
    for have, want in zip(shares, gradients, strict=True):
        close(over_ranks(have, world, combine), want, 1e-12)
    for have, want in zip(together, running, strict=True):
        close(have, want, 1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("fuse", [False, True], ids=["exact", "fused"])
@pytest.mark.parametrize("memory", [Memory(), Memory("sqrt")], ids=["kept", "again"])
def test_the_order_of_messages_does_not_depend_on_the_size_of_a_part(memory, fuse):
    def names(count):
        model = convnet()
        convert_sync_batch_norm(model.net, lambda array, merge: array)
        nodes = plan(model, count, memory, fuse).graph.nodes
        return [(n.row.name, n.outputs) for n in nodes if n.row.name.startswith("sync")]

    found = [[name for name, _ in names(count)] for count in (1, 2, 50, 3000)]

    assert found[0] == ["sync_batch_norm"] * 3 + ["sync_batch_norm_grad"] * 3
    assert found[1:] == found[:1] * 3


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
@pytest.mark.parametrize("kind", ["serial", "threaded"])
def test_training_together_is_training_alone(world, combine, kind, overlap):
    one, many = convnet(), convnet()
    data = batches([(n, 6, 5, 2) for n in (7, 2, 9, 1, 13, 1)])
    optimizer = SGD(momentum=0.9)
    expected = serial(one, optimizer, data)
    convert_sync_batch_norm(many.net, combine)
    many.together = combine

    results, state = parallel(many, optimizer, world, data, kind, Options(overlap), 256)

    for (loss, correct, _), result in zip(expected, results, strict=True):
        assert result.loss_sum == pytest.approx(loss, rel=1e-11)
        assert result.correct == correct
    found = state.arrays()
    for name, parameter in one.parameters.items():
        place = "layers" if parameter.grad_req == "null" else "parameters"
        close(found[f"{place}/{name}"], parameter.data().asnumpy(), 1e-11)
    assert len(set(world.allgather_obj(state.digest()))) == 1


@pytest.mark.parametrize("sharded", [False, True], ids=["replicas", "sharded"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
@pytest.mark.parametrize("sizes", [(7, 1, 4), (1, 7, 2), (2, 1, 1)])
def test_batches_that_are_added_up_are_silent_where_a_rank_has_none(
    world, combine, sizes, overlap, sharded
):
    """Statistics are those of each batch, as on one rank."""
    steps = [batches([(n, 6, 5, 2) for n in sizes], seed) for seed in range(3)]
    options = Options(overlap, skip=True, accumulate=3, sharded=sharded)
    alone = world.split(world.rank)
    found = []
    for group in (alone, world):
        model = convnet()
        if group is world:
            convert_sync_batch_norm(model.net, combine)
            model.together = combine
        with create() as engine:
            first = steps[0][np.argmax(sizes)]
            step = trainer(model, SGD(momentum=0.9), group, engine, first, options, 256)
            for parts in steps:
                result = step.result(step.step(*(share(p, group) for p in parts)))
                assert (result.count, result.bad) == (sum(sizes), 0)
            engine.wait_all()
        found.append([tensor.array for tensor in step.state.leaves])

    for want, have in zip(*found, strict=True):
        close(have, want, 1e-11)
    alone.free()


def test_shards_are_refused(world, combine):
    """They are computed one after the other, and a statistic is of all of a batch."""
    model = convnet()
    model.together = combine
    data = batches([(4, 6, 5, 2)])

    with pytest.raises(ConfigError, match="batch statistics are over all ranks"):
        parallel(model, SGD(), world, data, options=Options(shard=2))
