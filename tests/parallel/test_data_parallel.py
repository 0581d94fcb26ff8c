"""k steps on p ranks are k steps on one rank with the same global batches."""

import threading

import numpy as np
import pytest
from replicas import batches, convnet, mlp, parallel, serial, share, trainer, twin_biases

from hpctrain import ops
from hpctrain.autograd import Primitive, Tensor, apply_row
from hpctrain.engine import ThreadedEngine, create
from hpctrain.errors import ConfigError, EngineError, ShapeError
from hpctrain.optim import SGD, Adam
from hpctrain.parallel.work import Options, Work
from hpctrain.trace import Recorder

MODELS = {"mlp": (mlp, (6,)), "conv": (convnet, (6, 5, 2))}
OPTIMIZERS = {
    "sgd": SGD(momentum=0.9, weight_decay=0.01),
    "adam": Adam(weight_decay=0.01),
}
SIZES = (7, 7, 2, 5, 1, 8)  # uneven on 3 ranks; of 2 and 1 some ranks have nothing


def prepared(name):
    make, shape = MODELS[name]
    data = batches([(n, *shape) for n in SIZES])
    models = make(), make()
    for model in models:
        first, second = list(model.parameters.values())[:2]
        first.lr_mult, second.wd_mult = 0.5, 0.0
    return *models, data


def check(expected, one, results, state):
    for (loss, correct, count), result in zip(expected, results, strict=True):
        assert result.loss_sum == pytest.approx(loss, rel=1e-10)
        assert (result.correct, result.count, result.stop) == (correct, count, False)
    found = state.arrays()
    for name, parameter in one.parameters.items():
        if parameter.grad_req != "null":
            np.testing.assert_allclose(
                found[f"parameters/{name}"], parameter.data().asnumpy(), rtol=1e-10, atol=1e-12
            )


def check_replicas(world, state):
    assert len(set(world.allgather_obj(state.digest()))) == 1


@pytest.mark.parametrize("kind", ["serial", "threaded"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
@pytest.mark.parametrize("clip", [0.0, 0.3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_ranks_together_are_one_rank(world, name, optimizer, clip, overlap, kind):
    one, many, data = prepared(name)
    expected = serial(one, OPTIMIZERS[optimizer], data, clip)

    options = Options(overlap=overlap, clip_norm=clip)
    results, state = parallel(
        many, OPTIMIZERS[optimizer], world, data, kind, options, slice_bytes=256
    )

    check(expected, one, results, state)
    check_replicas(world, state)


@pytest.mark.parametrize("slice_bytes", [1, 24, 72, 512, 2**20])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
def test_the_size_of_the_slices_changes_nothing(world, overlap, slice_bytes):
    one, many, data = prepared("mlp")
    expected = serial(one, OPTIMIZERS["adam"], data, 0.5)

    options = Options(overlap=overlap, clip_norm=0.5)
    results, state = parallel(
        many, OPTIMIZERS["adam"], world, data, "threaded", options, slice_bytes
    )

    check(expected, one, results, state)
    check_replicas(world, state)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
def test_dropout_draws_by_the_row_of_the_global_batch(world, overlap):
    """Ranks without a sample of one batch must draw as the others do in the next."""
    one, many = mlp(0.4), mlp(0.4)
    data = batches([(n, 6) for n in SIZES])
    expected = serial(one, OPTIMIZERS["sgd"], data)

    results, state = parallel(
        many, OPTIMIZERS["sgd"], world, data, "threaded", Options(overlap), 256
    )

    check(expected, one, results, state)
    check_replicas(world, state)


def test_shapes_may_change_from_step_to_step(world):
    shapes = [(6, 6, 5, 2), (5, 8, 7, 2), (6, 6, 5, 2), (3, 8, 7, 2), (1, 4, 4, 2)]
    one, many, data = convnet(), convnet(), batches(shapes)
    expected = serial(one, OPTIMIZERS["sgd"], data)

    results, state = parallel(many, OPTIMIZERS["sgd"], world, data, slice_bytes=512)

    check(expected, one, results, state)
    check_replicas(world, state)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
@pytest.mark.parametrize("shard", [1, 2, 4])
def test_virtual_shards_change_nothing(world, overlap, shard):
    one, many, same = mlp(0.4), mlp(0.4), mlp(0.4)
    data = batches([(n, 6) for n in SIZES])
    options = Options(overlap=overlap, clip_norm=0.3, shard=shard)
    expected = serial(one, OPTIMIZERS["adam"], data, 0.3)
    alone = world.split(world.rank)

    results, state = parallel(many, OPTIMIZERS["adam"], world, data, "threaded", options, 64)
    single = parallel(same, OPTIMIZERS["adam"], alone, data, "serial", options, 512)[1]

    check(expected, one, results, state)
    check_replicas(world, state)
    for a, b in zip(state.trained, single.trained, strict=True):
        # These are in float64 already, so that sums of shards do round.
        np.testing.assert_allclose(a.array, b.array, rtol=1e-12, atol=1e-14)
    alone.free()


def test_equal_gradients_of_two_parameters_do_not_meet(world):
    """Two biases that are added have one gradient, computed once and written twice."""

    one, many = twin_biases(), twin_biases()
    data = batches([(8, 6)] * 8)
    expected = serial(one, OPTIMIZERS["sgd"], data)

    results, state = parallel(many, OPTIMIZERS["sgd"], world, data, slice_bytes=64)

    check(expected, one, results, state)
    check_replicas(world, state)


def test_fixed_parameters_stay(world):
    one, many, data = prepared("mlp")
    for model in (one, many):
        model.parameters["w2"].grad_req = "null"
    before = many.parameters["w2"].data().asnumpy().copy()
    expected = serial(one, OPTIMIZERS["sgd"], data)

    results, state = parallel(many, OPTIMIZERS["sgd"], world, data, slice_bytes=64)

    check(expected, one, results, state)
    np.testing.assert_array_equal(state.arrays()["layers/w2"], before)


@pytest.mark.parametrize("kind", ["serial", "threaded"])
def test_the_stop_flag_of_one_rank_arrives_on_all_at_the_same_step(world, kind):
    data = batches([(world.size + 1, 6), (1, 6)] * 3)
    with create(kind) as engine:
        step = trainer(mlp(), OPTIMIZERS["sgd"], world, engine, data[0])
        stops = []
        for number, batch in enumerate(data):
            # The last rank has no sample of each second batch.
            step.stop = world.rank == world.size - 1 and number >= 3
            stops.append(step.result(step.step(share(batch, world))).stop)

    assert stops == [False, False, False, True, True, True]


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
def test_any_order_gives_the_same_bits(world, overlap):
    data = batches([(8, 6)] * 6)
    found = []
    for shuffled in (False, True):
        with create("threaded") as engine:
            step = trainer(
                mlp(), OPTIMIZERS["sgd"], world, engine, data[0], Options(overlap), 128
            )
            rng = np.random.default_rng(4)  # the same order on all ranks
            for batch in data:
                if shuffled:
                    step.reorder(rng.permutation(len(step.order)).tolist())
                step.result(step.step(share(batch, world)))
            engine.wait_all()
            found.append(step.state.digest())

    assert found[0] == found[1]


@pytest.mark.parametrize("order", [[0], [0, 0, 1], [1, 2]])
def test_an_order_that_is_no_permutation_is_refused(world, order):
    data = batches([(4, 6)])
    with create("serial") as engine:
        step = trainer(mlp(), OPTIMIZERS["sgd"], world, engine, data[0], slice_bytes=512)
        with pytest.raises(ConfigError, match="slices once"):
            step.reorder(order)


def test_a_step_needs_prepare(world):
    model, data = mlp(), batches([(4, 6)])
    with create("serial") as engine:
        step = trainer(model, OPTIMIZERS["sgd"], world, engine, data[0])
        step.order = ()

        with pytest.raises(EngineError, match="call prepare on all ranks"):
            step.step(share(data[0], world))


def test_an_error_in_a_kernel_reaches_whoever_waits(world):
    data = batches([(2 * world.size, 6)])
    work = share(data[0], world)
    bad = Work(work.inputs, (work.targets[0] + 5,), work.count, work.global_count, work.row)
    with create("serial") as engine:
        step = trainer(mlp(), OPTIMIZERS["sgd"], world, engine, data[0])

        with pytest.raises(EngineError, match="needed 0 to 4") as caught:
            step.result(step.step(bad))

    assert isinstance(caught.value.__cause__, ShapeError)


def gated(held):
    """Return an MLP whose backward pass applies the kernel ``held`` as one of its last."""

    def same(xp, ins, outs, scratch):
        xp.copyto(outs[0], ins[0])

    row = Primitive("held", "elementwise", lambda specs: specs, held)
    gate = Primitive(
        "gate", "elementwise", lambda specs: specs, same,
        lambda inputs, outputs, given: apply_row(row, given, {}),
    )  # fmt: skip
    model = mlp()
    plain = model.net

    def net(x):
        # By way of the input: that gradient comes after those of the layers.
        shift = apply_row(gate, [model.tensor("b1") * 0.5], {})[0]
        return plain(x + ops.sum(shift) * 0.01)

    model.net = net
    return model


@pytest.mark.mpi(min_size=2)
def test_the_first_exchange_starts_before_the_backward_pass_ends(world):
    """The end of the backward pass waits here for the first exchange: it has to come."""
    begun = threading.Event()

    def held(xp, ins, outs, scratch):
        waited.append(begun.wait(20))
        xp.copyto(outs[0], ins[0])

    waited = []
    recorder = Recorder()
    data = batches([(4 * world.size, 6)])
    with ThreadedEngine(recorder=recorder) as engine:
        step = trainer(gated(held), OPTIMIZERS["sgd"], world, engine, data[0], slice_bytes=128)
        begin = step._exchange.begin
        step._exchange.begin = lambda *args: begun.set() or begin(*args)
        step.result(step.step(share(data[0], world)))
        engine.wait_all()
    spans = recorder.events()

    first = min(s["start_ns"] for s in spans if s["name"].startswith("exchange"))
    others = ("feed", "ride", "keep", "update")
    segments = [s for s in spans if s["lane"] == "compute" and not s["name"].startswith(others)]
    assert first < max(s["end_ns"] for s in segments)
    assert waited == [True]


def test_a_model_may_have_several_inputs(world):
    model = mlp()
    plain = model.net
    model.net = lambda x, z: plain(x) + plain(z)
    (x, y), (z, _) = batches([(5, 6)] * 2)
    outputs = model.net(Tensor(x), Tensor(z))
    expected = ops.softmax_cross_entropy(outputs, Tensor(y)).asnumpy().sum()
    with create("serial") as engine:
        step = trainer(model, OPTIMIZERS["sgd"], world, engine, (x, z, y))
        result = step.result(step.step(share((x, z, y), world)))

    assert result.loss_sum == pytest.approx(expected, rel=1e-10)
