"""Embeddings whose gradients travel as rows: the numbers of a serial twin."""

import numpy as np
import pytest
from replicas import SCHEDULE, share
from tabled import sentences, twin, words

from hpctrain.comm.compress import codec
from hpctrain.engine import create
from hpctrain.optim import SGD, Adam
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.tables import Table
from hpctrain.parallel.ways import connect
from hpctrain.parallel.work import Options, Work

OPTIMIZER = SGD(momentum=0.9, weight_decay=0.01)
PLAIN = SGD()  # leaves rows as they are that no rank has touched
SIZES = (12, 5, 1, 12)


def train(
    world, model, batches, options, kind="direct", accumulate=False, optimizer=OPTIMIZER,
    coded=None,
):  # fmt: skip
    state = ModelState(model.parameters, optimizer, 128)
    way = connect(kind, world, state, options, coded)
    with create("threaded") as engine:
        step = DataParallel(
            model.objective, state, optimizer, SCHEDULE, engine, world, options, way
        )
        ids, labels = batches[0]
        step.prepare(*Work((ids[:2],), (labels[:2],), 2, 12).specs())
        for batch in batches:
            parts = halves(batch) if accumulate else [batch]
            step.result(step.step(*(share(p, world, options.shard or 1) for p in parts)))
        engine.wait_all()
    found = {n: p.data().asnumpy().copy() for n, p in model.parameters.items()}
    way.free()
    return step, found


def halves(batch):
    """Cut a batch into two that make one step together, if there is enough."""
    cut = len(batch[0]) // 2
    parts = (slice(0, cut), slice(cut, None)) if cut else (slice(None),)
    return [tuple(a[part] for a in batch) for part in parts]


@pytest.mark.parametrize(
    ("options", "accumulate"),
    [
        (Options(), False),
        (Options(overlap=False), False),
        (Options(shard=2), False),
        (Options(accumulate=2), True),
    ],
    ids=["plain", "after", "shards", "accumulated"],
)
@pytest.mark.parametrize("kind", ["direct", "mpi", "node"])
def test_rows_give_the_numbers_of_a_serial_twin(world, kind, options, accumulate):
    batches = sentences(SIZES)
    expected = twin(words(), batches, OPTIMIZER)

    step, found = train(world, words(), batches, options, kind, accumulate)

    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-13)
    bits = {name: array.tobytes().hex() for name, array in found.items()}
    assert all(other == bits for other in world.allgather_obj(bits))
    alone = [s for s in step.state.flat.slices if s.parameters == (0,)]
    assert len(alone) == 1 or world.size == 1


@pytest.mark.mpi(min_size=2)
def test_a_small_table_travels_whole(world):
    model = words(height=3)

    step, _ = train(world, model, sentences(SIZES, height=3), Options())

    assert step._exchange._rows is None


@pytest.mark.mpi(min_size=2)
def test_fewer_bytes_are_planned_for(world):
    step, _ = train(world, words(), sentences(SIZES), Options())

    piece = next(s for s in step.state.flat.slices if s.parameters == (0,))
    whole = step.way.wire_bytes(piece.stop - piece.start, 8)
    assert step._exchange.nbytes(piece) < whole / 10


SHARDED = {
    "direct": ("direct", PLAIN, Options(sharded=True)),
    "mpi": ("mpi", PLAIN, Options(sharded=True)),
    "node": ("node", PLAIN, Options(sharded=True)),
    "decayed": ("mpi", SGD(weight_decay=0.01), Options(sharded=True)),
    "momentum": ("node", OPTIMIZER, Options(sharded=True)),
    "adam": ("direct", Adam(), Options(sharded=True)),
    "after": ("node", PLAIN, Options(sharded=True, overlap=False, skip=True, loss_scale=4.0)),
    "shards": ("mpi", PLAIN, Options(sharded=True, shard=2)),
    "accumulated": ("node", PLAIN, Options(sharded=True, accumulate=2, skip=True)),
}


@pytest.mark.parametrize("case", SHARDED)
def test_ranks_that_update_parts_give_the_numbers_of_a_serial_twin(world, case):
    kind, optimizer, options = SHARDED[case]
    model, batches = words(width=3), sentences(SIZES)
    expected = twin(words(width=3), batches, optimizer)

    step, found = train(world, model, batches, options, kind, options.accumulate > 1, optimizer)

    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-13)
    bits = {name: array.tobytes().hex() for name, array in found.items()}
    assert all(other == bits for other in world.allgather_obj(bits))
    if world.size > 1:
        (piece,) = [s for s in step.state.flat.slices if s.parameters == (0,)]
        assert step._exchange._rows.come_back(piece.index) == (optimizer == PLAIN)
        start, stop = step._exchange.own(piece)
        assert 0 <= stop - start <= -(-piece.stop // world.size) + 16


@pytest.mark.parametrize("optimizer", [PLAIN, OPTIMIZER], ids=["rows", "parts"])
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "parts"])
def test_a_table_is_updated_by_the_norm_of_the_whole_gradient(world, optimizer, sharded):
    batches, options = sentences(SIZES), Options(clip_norm=0.05, sharded=sharded)
    expected = twin(words(), batches, optimizer, options.clip_norm)

    _, found = train(world, words(), batches, options, optimizer=optimizer)

    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-13)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "parts"])
def test_rows_travel_as_they_are_beside_slices_that_are_compressed(world, sharded):
    def trained(batches, coded):
        model = words()
        for parameter in model.parameters.values():
            parameter.cast(np.float32)
        options = Options(sharded=sharded)
        return train(world, model, batches, options, optimizer=PLAIN, coded=coded)

    first, whole = sentences(SIZES)[:1], sentences(SIZES)
    step, found = trained(whole, codec("bf16"))

    (piece,) = [s for s in step.state.flat.slices if s.parameters == (0,)]
    assert piece.index in step._exchange._rows
    for name, array in trained(whole, None)[1].items():
        np.testing.assert_allclose(found[name], array, rtol=1e-2, atol=1e-3)
    bits = {name: array.tobytes().hex() for name, array in found.items()}
    assert all(other == bits for other in world.allgather_obj(bits))
    # After one step the words' vectors are the same to the bit, but not what was compressed.
    plain, coded = trained(first, None)[1], trained(first, codec("bf16"))[1]
    np.testing.assert_array_equal(coded["table"], plain["table"])
    assert (coded["w"] != plain["w"]).any()


@pytest.mark.mpi(min_size=2)
def test_each_rank_keeps_the_state_of_its_part_of_a_table(world):
    batches = sentences(SIZES, height=401)
    step, _ = train(world, words(height=401), batches, Options(sharded=True))
    state = step.state

    (mine,) = state.optimizer.values()
    assert mine.size <= state.flat.total / world.size + 16 * len(state.flat.slices)
    whole = state.gathered(world)
    assert ("optimizer/momentum/table" in whole) == (world.rank == 0)
    alone = ModelState(words(height=401).parameters, OPTIMIZER, 128)
    told = world.bcast_obj({n: a.tolist() for n, a in whole.items() if "ranks/" not in n}, 0)
    arrays = {n: np.array(a) for n, a in told.items()}
    alone.load(arrays)
    state.load(arrays)
    np.testing.assert_array_equal(state.optimizer["momentum"], mine)
    expected = twin(words(height=401), batches, OPTIMIZER)["table"]
    np.testing.assert_allclose(alone.flat.view(alone.flat.weights, 0), expected, rtol=1e-10)


@pytest.mark.mpi(min_size=2)
def test_rows_come_back_where_that_is_fewer_bytes(world):
    dense = (world.size - 1) * 400 * 4 * 8 // world.size
    for optimizer, back in ((PLAIN, 2 * (world.size - 1) * 6 * 40), (OPTIMIZER, dense)):
        step, _ = train(
            world, words(), sentences(SIZES), Options(sharded=True), optimizer=optimizer
        )
        piece = next(s for s in step.state.flat.slices if s.parameters == (0,))

        sent = step._exchange.nbytes(piece)

        assert sent < 1.1 * back + (world.size - 1) * 6 * 40
        assert sent < step.way.wire_bytes(piece.stop - piece.start, 8)


@pytest.mark.serial
def test_rows_are_compared_with_what_a_codec_would_send():
    table, coded = Table(0, 1000, 64, 100), codec("2bit")

    assert table.nbytes(4, 2) == 100 * (256 + 8)
    assert (table.whole(4, 2), table.whole(4, 2, coded)) == (256_000, 16_000)
    # Parts come back as they are, whatever compresses the gradient.
    parts = table._replace(parts=((0, 32_000), (32_000, 64_000)))
    assert parts.whole(4, 2, coded) == (16_000 + 256_000) // 2
    assert parts.nbytes(4, 2) == 50 * 264 + 128_000
    assert parts.by_rows().nbytes(4, 2) == 50 * 264 + 100 * 264
