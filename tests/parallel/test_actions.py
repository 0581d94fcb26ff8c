"""What may keep a step from counting, and who updates what, on any number of ranks."""

from dataclasses import replace

import numpy as np
import pytest
from replicas import SCHEDULE, batches, mlp, parallel, serial, share, trained, trainer

from hpctrain.comm.compress import codec
from hpctrain.comm.paths import make
from hpctrain.comm.progress import Log
from hpctrain.engine import create
from hpctrain.io.sampler import part
from hpctrain.optim import SGD, Adam, AdamW
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.ways import Way, connect
from hpctrain.parallel.work import Options

OPTIMIZERS = {
    "sgd": SGD(),
    "momentum": SGD(momentum=0.9, weight_decay=0.01),
    "nesterov": SGD(momentum=0.9, nesterov=True),
    "adam": Adam(weight_decay=0.01),
    "adamw": AdamW(weight_decay=0.1),
}
ADAM = OPTIMIZERS["adam"]
SIZES = (7, 7, 2, 5, 1, 8)  # uneven on 3 ranks; of 2 and 1 some ranks have nothing
WAYS = [(True, "threaded"), (True, "serial"), (False, "threaded"), (False, "serial")]
ids = pytest.mark.parametrize(("overlap", "kind"), WAYS)


def data_of(sizes=SIZES, poisoned=()):
    """Return batches; in those of the numbers ``poisoned`` the last record is not a number."""
    data = batches([(n, 6) for n in sizes])
    for number in poisoned:
        data[number][0][-1, 2] = np.nan
    return data


def model():
    made = mlp(0.3)
    first, second = list(made.parameters.values())[:2]
    first.lr_mult, second.wd_mult = 0.5, 0.0
    return made


def check(one, state, rtol=1e-11):
    for name, array in state.arrays().items():
        if name.startswith("parameters/"):
            own = one.parameters[name.removeprefix("parameters/")].data().asnumpy()
            np.testing.assert_allclose(array, own, rtol, 1e-13, err_msg=name)


def owner(world, total):
    """Return the rank that has the last record of a batch."""
    return next(
        rank for rank in range(world.size) if part(total, rank, world.size).stop == total
    )


@ids
@pytest.mark.parametrize("clip", [0.0, 0.3])
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_a_nan_on_one_rank_skips_the_step_on_all(world, sharded, clip, overlap, kind):
    poisoned = (1, 2, 4)
    one, many, data = model(), model(), data_of(poisoned=poisoned)
    serial(one, ADAM, data, clip, poisoned)

    options = Options(overlap=overlap, clip_norm=clip, skip=True, sharded=sharded)
    results, state = parallel(many, ADAM, world, data, kind, options, 256)

    check(one, state)
    assert len(set(world.allgather_obj(state.digest()))) == 1
    assert [r.step for r in results if r.skipped] == list(poisoned)
    for result, size in zip(results, SIZES, strict=True):
        assert result.bad == (result.step in poisoned)
        assert result.mine == (result.skipped and world.rank == owner(world, size))
        assert np.isfinite(result.loss_sum) == (not result.skipped)


@pytest.mark.parametrize("path", ["mpi", "direct", "node"])
def test_after_a_skipped_step_all_bits_are_those_of_a_run_without_it(world, path):
    """Only the number of the step differs, which moves no more than the dropout masks."""
    data = data_of((8,) * 5, poisoned=(1,))
    options = Options(skip=True, sharded=True)
    plain = OPTIMIZERS["momentum"]

    found = parallel(mlp(), plain, world, data, "threaded", options, 256, path)[1]
    expected = parallel(
        mlp(), plain, world, data[:1] + data[2:], "threaded", options, 256, path
    )[1]

    np.testing.assert_array_equal(found.flat.weights, expected.flat.weights)
    states = found.gathered(world), expected.gathered(world)
    for name, array in states[0].items():
        np.testing.assert_array_equal(array, states[1][name], err_msg=name)


@ids
def test_the_loss_scale_is_taken_back_from_the_gradient(world, overlap, kind):
    one, many, data = model(), model(), data_of()
    serial(one, ADAM, data, 0.3)

    options = Options(overlap=overlap, clip_norm=0.3, loss_scale=1024.0)
    results, state = parallel(many, ADAM, world, data, kind, options, 256)

    check(one, state)
    assert [(r.scale, r.next_scale) for r in results] == [(1024, 1024)] * len(data)


def test_the_loss_scale_is_halved_by_a_bad_step_and_doubled_after_enough_good_ones(world):
    one, many, data = model(), model(), data_of(poisoned=(1, 4))
    serial(one, ADAM, data, 0.0, (1, 4))
    with create("threaded") as engine:
        step = trainer(many, ADAM, world, engine, data[0], Options(skip=True, loss_scale=64.0))
        step.scale.interval = 2
        results = trained(step, [[batch] for batch in data])

    check(one, step.state)
    assert [r.scale for r in results] == [64, 64, 32, 32, 64, 32]
    assert [r.next_scale for r in results] == [64, 32, 32, 64, 32, 32]
    assert step.scale.plain() == {"value": 32.0, "good": 1, "skipped": 2}


def test_several_batches_of_a_step_are_skipped_together(world):
    data = data_of((7, 5, 6, 3), poisoned=(1,))
    one, many = model(), model()
    serial(one, ADAM, [tuple(map(np.concatenate, zip(*data[2:], strict=True)))] * 2, 0.0, (0,))

    options = Options(skip=True, accumulate=2)
    results, state = parallel(many, ADAM, world, [data[:2], data[2:]], "threaded", options, 256)

    check(one, state)
    assert [r.skipped for r in results] == [True, False]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_an_overflow_on_the_wire_skips_the_step_though_no_rank_is_bad(world, sharded):
    """Half precision ends at 65504; the loss scale finds what fits."""
    many = mlp()
    for parameter in many.parameters.values():
        parameter.cast(np.float32)
    data = [(x.astype(np.float32), y) for x, y in data_of((12,) * 12)]
    options = Options(skip=True, loss_scale=2.0**20, sharded=sharded)
    state = ModelState(many.parameters, ADAM, 256)
    with create("threaded") as engine, make("direct", world, codec("fp16")) as path:
        step = DataParallel(
            many.objective, state, ADAM, SCHEDULE, engine, world, options,
            Way(path.transport, None, path),
        )  # fmt: skip
        step.prepare(*share(data[0], world).specs())
        results = trained(step, [[batch] for batch in data])

    skipped = [r.skipped for r in results]
    assert skipped[0] and not skipped[-1]
    assert not any(r.bad or r.mine for r in results)
    assert np.isfinite(state.flat.weights).all()
    assert step.scale.value == 2.0 ** (20 - sum(skipped))
    assert len(set(world.allgather_obj(state.digest()))) == 1


@pytest.mark.parametrize(
    ("optimizer", "slice_bytes", "path"),
    [
        *((name, 512, "direct") for name in OPTIMIZERS),
        *(("adam", size, path) for size in (24, 2**20) for path in ("mpi", "direct", "node")),
    ],
)
def test_a_sharded_optimizer_gives_the_same_numbers(world, optimizer, slice_bytes, path):
    one, many, same, data = model(), model(), model(), data_of()
    serial(one, OPTIMIZERS[optimizer], data)

    arguments = (OPTIMIZERS[optimizer], world, data, "threaded")
    state = parallel(many, *arguments, Options(sharded=True), slice_bytes, path)[1]
    whole = parallel(same, *arguments, Options(), slice_bytes, path)[1]

    check(one, state)
    assert len(set(world.allgather_obj(state.digest()))) == 1
    if path != "mpi" or world.size < 3:
        # The sums are the same; those of MPI's two collectives have an order of their own.
        np.testing.assert_array_equal(state.flat.weights, whole.flat.weights)


@ids
@pytest.mark.parametrize("clip", [0.05, 0.3])
def test_ranks_with_parts_clip_by_the_norm_of_the_whole(world, clip, overlap, kind):
    one, many, data = model(), model(), data_of()
    serial(one, ADAM, data, clip)

    options = Options(overlap=overlap, clip_norm=clip, sharded=True)
    state = parallel(many, ADAM, world, data, kind, options, 256)[1]

    check(one, state)
    assert len(set(world.allgather_obj(state.digest()))) == 1


class Names(Log):
    """Remembers what was noted."""

    def __init__(self):
        super().__init__()
        self.names = []

    def posted(self, key, name, waits=True):
        super().posted(key, name, waits)
        self.names.append(name)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
def test_whoever_waits_for_the_norm_is_seen(world, overlap):
    options, log, many = Options(overlap, clip_norm=0.1, sharded=True), Names(), model()
    state = ModelState(many.parameters, ADAM, 256)
    way = replace(connect("direct", world, state, options), log=log)
    with create("threaded") as engine:
        step = DataParallel(many.objective, state, ADAM, SCHEDULE, engine, world, options, way)
        step.prepare(*share(data_of()[0], world).specs())
        for batch in data_of()[:2]:
            step.result(step.step(share(batch, world)))
        engine.wait_all()
    way.free()

    assert log.names.count("norm of the gradient") == 2
    assert log.oldest() is None and log.busy() is None
    assert world.allgather_obj(log.names) == [log.names] * world.size


@ids
def test_parts_of_shards_of_batches(world, overlap, kind):
    """All at once."""
    data, one, many = data_of(poisoned=(3,)), model(), model()
    steps = [data[:2], data[2:3], data[3:5], data[5:]]
    whole = [tuple(map(np.concatenate, zip(*step, strict=True))) for step in steps]
    serial(one, ADAM, whole, 0.3, (2,))

    options = Options(
        overlap=overlap, clip_norm=0.3, shard=2, sharded=True, skip=True, accumulate=2,
        loss_scale=8.0,
    )  # fmt: skip
    results, state = parallel(many, ADAM, world, steps, kind, options, 128)

    check(one, state)
    assert [r.skipped for r in results] == [False, False, True, False]


def test_each_rank_keeps_a_part_of_the_optimizer_s_state(world):
    state = parallel(model(), ADAM, world, data_of(), "threaded", Options(sharded=True), 256)[1]

    counts = world.allgather_obj([array.size for array in state.optimizer.values()])
    for each in zip(*counts, strict=True):
        assert sum(each) == state.flat.total
        # A part ends at a cache line: up to 16 elements more or less in each slice.
        assert max(each) - min(each) <= 16 * len(state.flat.slices)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_a_nan_never_gets_into_what_compression_owes(world, sharded):
    """And debts are in units of the gradient, so that they go by the loss scale."""
    many = mlp()
    for parameter in many.parameters.values():
        parameter.cast(np.float32)
    data = [(x.astype(np.float32), y) for x, y in data_of((12,) * 6, poisoned=(2,))]
    options = Options(skip=True, loss_scale=16.0, sharded=sharded)
    state, owed = ModelState(many.parameters, ADAM, 256), []
    with (
        create("threaded") as engine,
        make("direct", world, codec("2bit", threshold=0.1)) as path,
    ):
        way = Way(path.transport, None, path)
        step = DataParallel(many.objective, state, ADAM, SCHEDULE, engine, world, options, way)
        step.prepare(*share(data[0], world).specs())
        for batch in data:
            trained(step, [[batch]])
            owed.append(path.transport.state())
        halved = step._exchange.rescale(0.5) or path.transport.state()

    assert all(np.isfinite(array).all() for kept in owed for array in kept.values())
    assert any(array.any() for array in owed[-1].values())
    for name, array in halved.items():
        np.testing.assert_array_equal(array, owed[-1][name] / 2)
    assert np.isfinite(state.flat.weights).all()
    assert (step.scale.value, step.scale.skipped) == (8.0, 1)
    assert len(set(world.allgather_obj(state.digest()))) == 1
