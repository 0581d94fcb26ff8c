"""The loop: broken off anywhere it goes on as if nothing had happened."""

import numpy as np
import pytest
from mpi4py import MPI
from running import EPOCHS, RECORDS, After, Run, assert_equal, everything, undisturbed

from hpctrain.comm.group import Group
from hpctrain.engine import create
from hpctrain.errors import NumericError
from hpctrain.trace import Recorder


@pytest.fixture
def world():
    """All ranks."""
    with Group(MPI.COMM_WORLD.Dup()) as group:
        yield group


@pytest.mark.parametrize("looks", [1, 2, 4, 5, 7])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(world, shared_path, looks):
    expected, outcome = undisturbed(world)
    with create("threaded") as engine:
        stopped = Run(world, engine, shared_path).fit(After(looks))
    with create("threaded") as engine:
        run = Run(world, engine, shared_path)
        ended = run.fit()

    assert (stopped.finished, ended.finished) == (False, True)
    assert_equal(everything(run.state), expected)
    assert ended.values == outcome.values


@pytest.mark.parametrize("steps", [1, 3, 4, 6])
def test_a_run_that_ended_by_max_steps_goes_on_with_the_next_batch(world, shared_path, steps):
    expected, _ = undisturbed(world)
    with create("threaded") as engine:
        assert Run(world, engine, shared_path, max_steps=steps).fit().finished
    with create("threaded") as engine:
        run = Run(world, engine, shared_path)
        run.fit()

    assert_equal(everything(run.state), expected)


def test_a_run_goes_on_with_fewer_ranks(world, shared_path):
    """Without layer state: statistics of parts of a batch are not those of the whole."""
    alone = world.split(world.rank)
    with create("threaded") as engine:
        Run(world, engine, shared_path, mean=False).fit(After(6))
    if world.rank == 0:
        with create("threaded") as engine:
            run, reference = (
                Run(alone, engine, path, mean=False) for path in (shared_path, None)
            )
            ended, expected = run.fit(), reference.fit()
        found = everything(run.state)
        for name, array in everything(reference.state).items():
            if array.dtype.kind == "f":
                np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12)
        assert ended.values == pytest.approx(expected.values, rel=1e-9)
    alone.free()


def test_a_finished_run_says_what_it_came_to_and_trains_no_more(world, shared_path):
    with create("threaded") as engine:
        first = Run(world, engine, shared_path).fit()
    with create("threaded") as engine:
        run = Run(world, engine, shared_path)
        again = run.fit()

    assert again.finished
    assert run.trainer.at.step == EPOCHS * 4
    if world.rank == 0:
        assert again.values == first.values


def test_sums_count_every_record_once(world):
    with create("threaded") as engine:
        run = Run(world, engine, None, epochs=1)
        outcome = run.fit()
        sums = run.trainer.evaluate(run.trainer.test)

    assert sums.count == 9
    assert outcome.values["test_loss"] == pytest.approx(sums.loss_sum / 9)
    assert outcome.values["train_accuracy"] * RECORDS == pytest.approx(
        round(outcome.values["train_accuracy"] * RECORDS)
    )


def test_rank_0_reports_at_its_steps(world):
    with create("threaded") as engine:
        run = Run(world, engine, None, log_every=3)
        run.fit()

    expected = [3, 6, 9, 12] if world.rank == 0 else []
    assert [bar.step for bar in run.console.bars] == expected
    assert len(run.console.lines) == (EPOCHS if world.rank == 0 else 0)


def test_a_loss_that_is_not_finite_ends_the_run_on_all_ranks(world):
    with create("serial") as engine:
        run = Run(world, engine, None)
        run.state.flat.weights[-8:] = np.inf
        with (
            np.errstate(all="ignore"),
            pytest.raises(NumericError, match=r"needed (a )?finite"),
        ):
            run.fit()


def test_a_test_that_is_not_finite_is_told_as_such(world):
    with create("serial") as engine:
        run = Run(world, engine, None)
        run.trainer.test.records.arrays["x"][3] = np.nan
        with pytest.raises(NumericError, match="the test loss is nan after step 4, needed a f"):
            run.fit()


@pytest.mark.parametrize("steps", [(2, 3), (11, 99)])
def test_a_timeline_is_written_even_if_the_run_ends_within_it(world, shared_path, steps):
    recorder = Recorder(enabled=False)
    with create("threaded", recorder=recorder) as engine:
        run = Run(world, engine, shared_path, profile=steps, recorder=recorder)
        run.fit()
    world.barrier()

    assert run.trace.exists()
    assert not recorder.enabled
