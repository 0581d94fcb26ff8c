"""The bubble of a pipeline: sums over spans, and what their times let expect."""

import numpy as np
import pytest
from replicas import batches, mlp
from staged_runs import staged

from hpctrain.optim import SGD
from hpctrain.parallel.bubble import bubble_of, summary
from hpctrain.parallel.pipeline_times import Times, bubble_formula, simulate
from hpctrain.parallel.staged import Layout

SECONDS = (3.0, 2.0, 4.0)


def equal(stages):
    return Times(*((s,) * stages for s in SECONDS))


@pytest.mark.parametrize(
    ("kind", "chunks"), [("gpipe", 1), ("zero_bubble", 1), ("interleaved", 2)]
)
def test_what_was_done_by_the_simulator_is_what_is_expected(world, kind, chunks):
    """Each rank tells its own spans, by a clock of its own."""
    layout = Layout(world.size, kind, 4, chunks if world.size > 1 else 1)
    timeline = simulate(layout.plan(4), equal(layout.stages))
    ahead = 100.0 * world.rank
    mine = summary(timeline.ranks[world.rank])
    shifted = [mine[0] + ahead, mine[1] + ahead, *mine[2:]]

    found = bubble_of([shifted, shifted], world, layout, ahead)

    assert found.share == pytest.approx(timeline.bubble, abs=1e-12)
    assert found.expected() == pytest.approx(timeline.bubble, abs=1e-12)
    assert found.step_s == pytest.approx(timeline.makespan_s)
    assert found.times.forward_s == pytest.approx(equal(layout.stages).forward_s)
    assert found.times.weight_s == pytest.approx(equal(layout.stages).weight_s)
    assert found.micro_batches == 4


def test_without_a_step_there_is_no_bubble(world):
    found = bubble_of([], world, Layout(world.size, "1f1b", 2))

    assert (found.share, found.expected(), found.step_s) == (0, 0, 0)


@pytest.mark.serial
@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_schedules_that_are_taken_apart_do_not_wait_for_w(kind):
    for stages in (1, 2, 4, 7):
        for micro in (1, 3, 4, 8):
            timeline = simulate(Layout(stages, kind, micro).plan(micro), equal(stages))
            whole = simulate(Layout(stages, kind, micro, whole=True).plan(micro), equal(stages))

            wanted = bubble_formula(kind, stages, micro, seconds=SECONDS, whole=False)
            assert timeline.bubble == pytest.approx(wanted, abs=1e-12)
            assert whole.bubble == pytest.approx((stages - 1) / (micro + stages - 1), abs=1e-12)
            assert timeline.peaks == whole.peaks


@pytest.mark.serial
def test_the_formula_bounds_interleaved_schedules_that_are_taken_apart():
    for stages, micro, chunks in [(2, 2, 2), (3, 7, 2), (4, 8, 3), (5, 3, 2)]:
        plan = Layout(stages, "interleaved", micro, chunks).plan(micro)
        size = stages, micro, chunks

        assert simulate(plan, equal(stages * chunks)).bubble <= bubble_formula(
            "interleaved", *size, SECONDS, whole=False
        )


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_cotangents_that_wait_for_w_give_the_same_bits(world, kind):
    layouts = [Layout(world.size, kind, 3, 1, "params", whole=w) for w in (False, True)]
    data = batches([(n, 6) for n in (7, 5)])

    (soon, first, _), (late, second, step) = (
        staged(mlp(), SGD(momentum=0.9), data, world, layout) for layout in layouts
    )

    assert [r.loss_sum for r in soon] == [r.loss_sum for r in late]
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], name)
    kinds = {a.kind for actions in step.plan(3) for a in actions}
    assert kinds == {"F", "BW"}


@pytest.mark.mpi(min_size=2)
def test_zero_bubble_is_fitted_to_times_that_all_ranks_share(world):
    layout = Layout(world.size, "zero_bubble", 4, 1, "params")

    _, _, step = staged(mlp(), SGD(), batches([(8, 6), (8, 6)]), world, layout)

    times = step.model.layout.times
    assert len(times.forward_s) == world.size and min(times.forward_s) > 0
    assert times.latency_s > 0
    every = world.allgather_obj([list(map(list, (times.forward_s, times.weight_s)))])
    assert all(other == every[0] for other in every)
    fitted = simulate(step.plan(4), times)
    plain = simulate(Layout(world.size, "1f1b", 4).plan(4), times)
    assert fitted.makespan_s <= plain.makespan_s
    rows = list(step.moves.steps.values())
    found = bubble_of(rows, world, step.model.layout, step.clock_s, step.message)
    assert len(rows) == 2 and 0 <= found.share < 1 and 0 <= found.expected() < 1
