"""Batches over an epoch: each record once, however they are read."""

import json

import numpy as np
import pytest

from hpctrain.engine import SerialEngine, ThreadedEngine
from hpctrain.errors import ConfigError, DataError
from hpctrain.io import Loader, Plan, RandomShift, open_records
from hpctrain.io.loader import Batch

pytestmark = pytest.mark.serial  # real ranks: test_loader_ranks

ENGINES = {"none": None, "serial": SerialEngine, "threaded": ThreadedEngine}


@pytest.fixture(params=ENGINES)
def engine(request):
    if ENGINES[request.param] is None:
        yield None
        return
    with ENGINES[request.param]() as made:
        yield made


def copies(batch):
    return (
        batch.epoch, batch.step, batch.global_count, batch.ids.tolist(),
        [array.tolist() for array in (*batch.inputs, *batch.targets)],
    )  # fmt: skip


@pytest.mark.parametrize("size", range(1, 9))
def test_all_ranks_together_see_each_record_once(made, engine, size):
    plan, seen = Plan(100, 24, seed=3), []

    for rank in range(size):
        records = open_records(made[0])
        for batch in Loader(records, plan, rank, size, engine).epoch(0):
            np.testing.assert_array_equal(batch.targets[0], made[1]["label"][batch.ids])
            np.testing.assert_array_equal(batch.inputs[1], made[1]["wave"][batch.ids])
            assert batch.count == len(batch.ids) == len(batch.inputs[0])
            seen.extend(batch.ids)

    assert sorted(seen) == list(range(100))


def test_every_engine_gives_the_same_batches(made):
    runs = []
    for kind in ENGINES.values():
        records = open_records(made[0])
        with kind() if kind else open_records(made[0]) as engine:
            loader = Loader(records, Plan(100, 8), engine=engine if kind else None)
            runs.append([copies(batch) for epoch in range(2) for batch in loader.epoch(epoch)])

    assert runs[0] == runs[1] == runs[2]


def test_an_epoch_goes_on_at_any_step(made, engine):
    loader = Loader(open_records(made[0]), Plan(100, 16), engine=engine)

    whole = [copies(batch) for batch in loader.epoch(4)]

    assert [copies(batch) for batch in loader.epoch(4, step=3)] == whole[3:]
    assert list(loader.epoch(4, step=7)) == []


def test_a_loop_that_ends_early_leaves_a_good_loader(made, engine):
    loader = Loader(open_records(made[0]), Plan(100, 16), engine=engine)
    whole = [copies(batch) for batch in loader.epoch(0)]

    for _ in range(3):
        for batch in loader.epoch(1):
            assert batch.step == 0
            break

    assert [copies(batch) for batch in loader.epoch(0)] == whole
    assert loader.buffer_sets <= 5


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_batch_stays_valid_for_depth_further_batches(made, engine, depth):
    loader = Loader(open_records(made[0]), Plan(100, 5), engine=engine, depth=depth)
    kept: list[tuple[Batch, object]] = []

    for batch in loader.epoch(0):
        kept.append((batch, copies(batch)))
        if engine:
            engine.wait_all()
        for old, content in kept[-1 - depth :]:
            assert copies(old) == content

    assert loader.buffer_sets <= 2 * depth + 1


@pytest.mark.parametrize("hold", [1, 3, 8])
def test_a_batch_stays_valid_for_as_many_more_as_a_step_takes(made, engine, hold):
    loader = Loader(open_records(made[0]), Plan(100, 9, seed=3), engine=engine, hold=hold)
    held = []
    for batch in loader.epoch(0):
        held = [*held, (batch, copies(batch))][-hold - 1 :]
        if engine:
            engine.wait_all()
        assert all(copies(kept) == before for kept, before in held)

    assert loader.buffer_sets <= loader.depth + hold + 1


def test_prompt_release_needs_few_buffers(made, engine):
    loader = Loader(open_records(made[0]), Plan(100, 5), engine=engine, depth=2)

    for batch in loader.epoch(0):
        batch.release()
        batch.release()

    assert loader.buffer_sets == (3 if engine else 1)


def test_buffers_wait_for_the_tasks_that_read_them(made):
    sums = []
    with ThreadedEngine() as engine:
        loader = Loader(open_records(made[0]), Plan(100, 5), engine=engine)
        for batch in loader.epoch(0):

            def use(labels=batch.targets[0], ids=batch.ids):
                sums.append((int(labels.sum()), int(made[1]["label"][ids].sum())))

            engine.push(use, reads=[batch.variable])
            batch.release()
        engine.wait_all()

    assert len(sums) == 20
    assert all(got == needed for got, needed in sums)


def test_batches_are_read_ahead(made):
    records = open_records(made[0])
    read = []
    original = records.read
    records.read = lambda ids, out: (read.append(len(ids)), original(ids, out))
    with ThreadedEngine() as engine:
        batches = Loader(records, Plan(100, 10), engine=engine, depth=2).epoch(0)

        next(batches)
        engine.wait_all()

        assert len(read) == 3
        batches.close()


def test_augmented_training_is_the_same_on_any_number_of_ranks(made):
    def images(size):
        found = {}
        for rank in range(size):
            transform = RandomShift(1, seed=4, fields=["image"])
            records = open_records(made[0])
            # The image has no channel axis in the data, so it gets one here.
            loader = Loader(
                records, Plan(100, 24), rank, size,
                transform=lambda arrays, ids, epoch, shift=transform: shift(
                    {"image": arrays["image"][..., None]}, ids, epoch
                ),
            )  # fmt: skip
            for batch in loader.epoch(1):
                found.update(zip(batch.ids.tolist(), batch.inputs[0].tolist(), strict=True))
        return found

    one = images(1)

    assert one == images(3)
    plain = next(Loader(open_records(made[0]), Plan(100, 100)).epoch(1))
    pairs = zip(plain.ids, plain.inputs[0].tolist(), strict=True)
    assert sum(one[k] != image for k, image in pairs) > 50


def test_a_damaged_shard_ends_the_epoch_with_its_name(made, engine):
    manifest = json.loads((made[0] / "manifest.json").read_text())
    path = made[0] / "shard-00002.h5"
    records = open_records(made[0])
    path.write_bytes(bytes(manifest["shards"][2]["bytes"]))

    with pytest.raises(DataError, match=r"shard-00002.h5"):
        for _ in Loader(records, Plan(100, 10), engine=engine).epoch(0):
            pass


def test_a_plan_for_other_data_is_refused(made):
    records = open_records(made[0])

    with pytest.raises(ConfigError, match="plan is for 90 records, the data hold 100"):
        Loader(records, Plan(90, 10))
    with pytest.raises(ConfigError, match="depth 0"):
        Loader(records, Plan(100, 10), depth=0)
