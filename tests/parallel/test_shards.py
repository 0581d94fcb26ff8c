"""Several parts make one step: batches that are accumulated, and shards of them."""

from dataclasses import replace

import numpy as np
import pytest
from replicas import (
    Model,
    batches,
    joined,
    mlp,
    parallel,
    parameters,
    serial,
    share,
    trainer,
)

from hpctrain import ops
from hpctrain.engine import create
from hpctrain.errors import ConfigError
from hpctrain.graph.native import available
from hpctrain.graph.thin import ThinProducts
from hpctrain.optim import SGD, Adam
from hpctrain.parallel import later
from hpctrain.parallel.shards import parts_of_step
from hpctrain.parallel.work import Options, Work

SIZES = ((7, 7, 5), (2, 1, 4), (8, 3), (1,), (6, 6, 6))  # uneven; some ranks have nothing
ADAM, SGD_M = Adam(weight_decay=0.01), SGD(momentum=0.9, weight_decay=0.01)


def steps_of(sizes=SIZES):
    every = iter(batches([(n, 6) for step in sizes for n in step]))
    return [[next(every) for _ in step] for step in sizes]


def check(expected, one, results, state):
    for (loss, correct, count), result in zip(expected, results, strict=True):
        assert result.loss_sum == pytest.approx(loss, rel=1e-12)
        assert (result.correct, result.count, result.stop) == (correct, count, False)
    for name, array in state.arrays().items():
        if name.startswith("parameters/"):
            own = one.parameters[name.removeprefix("parameters/")].data().asnumpy()
            np.testing.assert_allclose(array, own, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["serial", "threaded"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_batches_of_one_step_are_one_batch(world, clip, overlap, kind):
    """Dropout included: masks go by the row in all batches together."""
    one, many, steps = mlp(0.4), mlp(0.4), steps_of()
    expected = serial(one, ADAM, [joined(step) for step in steps], clip)

    options = Options(overlap=overlap, clip_norm=clip, accumulate=3)
    results, state = parallel(many, ADAM, world, steps, kind, options, 256)

    check(expected, one, results, state)
    assert len(set(world.allgather_obj(state.digest()))) == 1


@pytest.mark.parametrize("path", ["mpi", "direct", "node"])
def test_the_path_of_the_sums_changes_nothing(world, path):
    one, many, steps = mlp(0.4), mlp(0.4), steps_of()
    expected = serial(one, SGD_M, [joined(step) for step in steps])

    options = Options(accumulate=3)
    results, state = parallel(many, SGD_M, world, steps, "threaded", options, 256, path)

    check(expected, one, results, state)


@pytest.mark.parametrize("shard", [2, 3])
def test_shards_begin_anew_with_each_batch(world, shard):
    one, many, same, steps = mlp(0.4), mlp(0.4), mlp(0.4), steps_of()
    expected = serial(one, ADAM, [joined(step) for step in steps])
    alone = world.split(world.rank)

    options = Options(accumulate=3, shard=shard)
    results, state = parallel(many, ADAM, world, steps, "threaded", options, 256)
    single = parallel(same, ADAM, alone, steps, "serial", options, 512)[1]

    check(expected, one, results, state)
    for a, b in zip(state.trained, single.trained, strict=True):
        np.testing.assert_allclose(a.array, b.array, rtol=1e-12, atol=1e-14)
    alone.free()


def test_sums_of_shards_and_batches_have_the_same_bits_on_any_number_of_ranks(world):
    def half(model):
        for parameter in model.parameters.values():
            if parameter.dtype == np.float64:
                parameter.cast(np.float32)
        return model

    steps = [[(x.astype(np.float32), y) for x, y in step] for step in steps_of()]
    alone = world.split(world.rank)
    options = Options(accumulate=3, shard=2)

    state = parallel(half(mlp(0.4)), ADAM, world, steps, "threaded", options, 64)[1]
    single = parallel(half(mlp(0.4)), ADAM, alone, steps, "serial", options, 256)[1]

    for a, b in zip(state.trained, single.trained, strict=True):
        np.testing.assert_array_equal(a.array, b.array)
    alone.free()


@pytest.mark.skipif(not available(), reason="no llvmlite")
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
def test_gradients_made_of_all_shards_at_once_have_the_bits_of_any_number_of_ranks(
    world, overlap, monkeypatch, tmp_path
):
    """Uneven shards, more than there is room for, and slices that end inside of a row."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spans = []

    class Seen(ThinProducts):
        def add(self, sums, span):
            spans.append((self.shape, self.count, span))
            super().add(sums, span)

    def wide():
        shapes = {"w1": (70, 6), "w2": (40, 70), "b2": (40,), "w3": (5, 40)}
        model = Model(parameters(shapes), None)
        for parameter in model.parameters.values():
            parameter.cast(np.float32)

        def net(x):
            t = model.tensor
            y = ops.dense(ops.tanh(ops.dense(x, t("w1"))), t("w2"), t("b2"))
            return ops.dense(ops.tanh(y), t("w3"))

        model.net = net
        return model

    steps = [[(x.astype(np.float32), y) for x, y in step] for step in steps_of(((15, 7), (9,)))]
    alone = world.split(world.rank)
    options = Options(overlap=overlap, accumulate=2, shard=2)
    whole = replace(options, fuse=True)

    plain = parallel(wide(), ADAM, alone, steps, "serial", options, 512)[1]
    monkeypatch.setattr(later, "ThinProducts", Seen)
    single = parallel(wide(), ADAM, alone, steps, "serial", whole, 512)[1]
    counts, ends = {c for _, c, _ in spans}, {b for *_, (_, b) in spans}
    state = parallel(wide(), ADAM, world, steps, "threaded", whole, 999)[1]

    assert {shape for shape, *_ in spans} == {(2, 40, 70), (1, 40, 70)}
    assert 6 in counts and any(end % 70 for end in ends)
    for a, b, c in zip(state.trained, single.trained, plain.trained, strict=True):
        np.testing.assert_array_equal(a.array, b.array)
        np.testing.assert_allclose(b.array, c.array, 1e-4, 1e-5)
    alone.free()


def test_a_step_exchanges_once(world):
    steps = steps_of([(6, 6, 6)] * 2)
    begun = []
    with create("serial") as engine:
        options = Options(accumulate=3)
        step = trainer(mlp(), SGD_M, world, engine, steps[0][0], options, 256)
        begin = step._exchange.begin
        step._exchange.begin = lambda piece, *rest: (
            begun.append(piece.index) or begin(piece, *rest)
        )
        for batch in steps:
            step.result(step.step(*(share(b, world) for b in batch)))
        engine.wait_all()

    assert sorted(begun) == sorted([piece.index for piece in step.state.flat.slices] * 2)


def test_more_batches_than_were_announced_are_refused(world):
    ((first, second),) = steps_of([(6, 6)])
    with create("serial") as engine:
        step = trainer(mlp(), SGD_M, world, engine, first)

        with pytest.raises(ConfigError, match="got 2 batches, needed at most 1"):
            step.step(share(first, world), share(second, world))


@pytest.mark.serial
def test_rows_go_on_from_batch_to_batch():
    def work(count, total, row):
        return Work([np.zeros((count, 2))], [np.zeros(count)], count, total, row)

    parts = parts_of_step([work(4, 7, 3), work(0, 2, 2), work(3, 5, 0)], shard=0)
    cut = parts_of_step([work(4, 8, 4), work(3, 5, 0)], shard=2)

    assert [(p.count, p.global_count, p.row) for p in parts] == [(4, 14, 3), (3, 14, 9)]
    assert [(p.count, p.row) for p in cut] == [(2, 4), (2, 6), (2, 8), (1, 10)]


@pytest.mark.serial
def test_a_part_that_begins_inside_a_shard_is_refused():
    work = Work([np.zeros((2, 2))], [np.zeros(2)], 2, 4, 1)

    with pytest.raises(ConfigError, match="begins at sample 1 of the batch"):
        parts_of_step([work], shard=2)
