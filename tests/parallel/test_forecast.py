"""Steps as the simulator takes them, from plans and measured times; and what orders follow."""

import numpy as np
import pytest
from replicas import batches, mlp, share, trainer

from hpctrain.comm.schedule import backward_order, best_order
from hpctrain.comm.simulate import simulate
from hpctrain.comm.timeline import Link, Piece, Stretch
from hpctrain.engine import create
from hpctrain.optim import SGD
from hpctrain.parallel import forecast as module
from hpctrain.parallel import ways
from hpctrain.parallel.data_parallel import REPLAN_AT
from hpctrain.parallel.forecast import forecast, step_of
from hpctrain.parallel.meter import Meter
from hpctrain.parallel.work import Options

MS = 1e-3
LINK = Link(0.05 * MS, 2e4)  # bytes of a model of 200 numbers take their time
STEPS = 12


def made_up(entries, count):
    """Times in the place of measured ones: the later a segment, the longer it takes."""
    return np.arange(1.0, count + 1) * MS


@pytest.mark.serial
def test_a_step_has_the_segments_and_slices_it_is_told():
    rows = [[[0, 1], []], [[2], [2]], [[1], [0, 1]]]

    step = step_of(rows, [10, 20, 30], np.array([1.0, 2, 3]), np.array([0.1, 0.2, 0.3]))

    assert step.stretches == (
        Stretch(1.0, (0, 1), ()), Stretch(2.0, (2,), (2,)), Stretch(3.0, (1,), (0, 1)),
    )  # fmt: skip
    assert step.pieces == (Piece(10, 0.1), Piece(20, 0.2), Piece(30, 0.3))


@pytest.mark.serial
@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "middle", "never"])
def test_the_slice_of_the_riders_is_ready_at_the_end(place):
    """Its parameters may have been final before: the loss is not."""
    rows = [[[0, 1], [0] if place == 0 else []], [[], [0, 1] if place == 1 else [1]], [[], []]]

    step = step_of(rows, [1, 1], np.ones(3), np.ones(2))

    assert [stretch.final for stretch in step.stretches] == [(), (1,), (0,)]


@pytest.mark.serial
def test_slices_of_padding_are_ready_after_the_first_segment():
    rows = [[[0], []], [[2], [2]]]

    step = step_of(rows, [1] * 5, np.ones(2), np.ones(5))

    assert [stretch.final for stretch in step.stretches] == [(1, 3, 4), (0, 2)]


@pytest.mark.serial
def test_a_step_of_one_segment_has_all_slices_in_it():
    step = step_of([[[0, 1], [1]]], [1] * 3, np.ones(1), np.ones(3))

    assert [stretch.final for stretch in step.stretches] == [(0, 1, 2)]


@pytest.mark.serial
def test_segments_without_a_time_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        step_of([[[0], []], [[0], [0]]], [1], np.ones(1), np.ones(1))


@pytest.fixture
def link(monkeypatch):
    """What a measurement of the link gives."""
    monkeypatch.setattr(ways, "measure", lambda *args: LINK)


def stepped(world, engine, overlap=True):
    """A step over the path direct, and batches for it."""
    data = batches([(8, 6)] * STEPS)
    step = trainer(
        mlp(), SGD(momentum=0.9), world, engine, data[0], Options(overlap), 128, "direct"
    )
    return step, data


def left(step):
    step.state.leave()
    step.way.free()


def test_the_slowest_rank_counts_for_each_segment_and_update(world, link):
    with create("serial") as engine:
        step, _ = stepped(world, engine)
    segments, count = step._bound.first().segments, len(step.state.flat.slices)
    meter = Meter(count)
    for index in range(len(segments)):
        slow = 10.0 if index % world.size == world.rank else 1.0
        meter.seconds[index] = [2 * slow, 2]
    meter.updates[1] = [3.0 * (world.rank + 1), 3]
    sizes = [100 * world.rank + i for i in range(count)]  # those of rank 0 count

    found = forecast(world, segments, sizes, meter, LINK)

    assert [s.seconds for s in found.step.stretches] == [10.0] * len(segments)
    updates = [0.0] * count
    updates[1] = float(world.size)
    assert found.step.pieces == tuple(map(Piece, range(count), updates))
    assert found.order == best_order(found.step, LINK)
    assert found.backward == backward_order(found.step)
    assert found.timeline() == simulate(found.step, LINK, found.order)
    assert found.timeline(found.backward).step_s >= found.timeline().step_s * 0.999
    assert len(set(world.allgather_obj(repr(found)))) == 1
    left(step)


def test_a_plan_of_a_real_step_makes_every_slice_final_once(world, link, monkeypatch):
    monkeypatch.setattr(module, "mean_seconds", made_up)
    with create("serial") as engine:
        step, _ = stepped(world, engine)

    found = step.forecast(LINK)

    finals = [s for stretch in found.step.stretches for s in stretch.final]
    assert sorted(finals) == [piece.index for piece in step.state.flat.slices]
    assert found.step.stretches[-1].final[0] == 0
    assert [p.nbytes for p in found.step.pieces] == [
        step.way.wire_bytes(piece.stop - piece.start, 8) for piece in step.state.flat.slices
    ]
    reads = {s for stretch in found.step.stretches for s in stretch.reads}
    held = {piece.index for piece in step.state.flat.slices if piece.parameters}
    assert reads == held
    left(step)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "after"])
def test_after_a_few_steps_the_order_is_the_best_for_the_times_measured(
    world, link, monkeypatch, overlap
):
    monkeypatch.setattr(module, "mean_seconds", made_up)
    orders, digests, results = [], [], []
    for planned in (True, False):
        with create("threaded") as engine:
            step, data = stepped(world, engine, overlap)
            first = step.order
            if not planned:
                step.fix(first)
            for batch in data:
                results.append(step.result(step.step(share(batch, world))))
                orders.append(step.order)
            engine.wait_all()
            best = step.forecast(LINK).order
            digests.append(step.state.digest())
        left(step)

    assert best != first
    before = REPLAN_AT[0] - 1
    assert orders[:STEPS] == [first] * before + [best] * (STEPS - before)
    assert orders[STEPS:] == [first] * STEPS
    assert digests[0] == digests[1]
    assert [r.loss_sum for r in results[:STEPS]] == [r.loss_sum for r in results[STEPS:]]
    assert len(set(world.allgather_obj(repr([orders, digests])))) == 1
