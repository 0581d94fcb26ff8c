"""The loop with steps of several batches, skipped steps, and sharded optimizers."""

import numpy as np
import pytest
from mpi4py import MPI
from running import (
    EPOCHS,
    RECORDS,
    After,
    InMemory,
    Poisoned,
    Run,
    assert_equal,
    everything,
    undisturbed,
)  # fmt: skip

from hpctrain.comm.group import Group
from hpctrain.engine import create
from hpctrain.errors import NumericError
from hpctrain.io import Loader
from hpctrain.io.sampler import Plan
from hpctrain.parallel.work import Options


@pytest.fixture
def world():
    """All ranks."""
    with Group(MPI.COMM_WORLD.Dup()) as group:
        yield group


@pytest.mark.parametrize("looks", [1, 2, 3])
@pytest.mark.parametrize("options", [Options(accumulate=3), Options(accumulate=2, shard=1)])
def test_a_run_of_steps_of_several_batches_goes_on_bit_for_bit(
    world, shared_path, options, looks
):
    """Of 4 batches an epoch, the last step has one, or two; a run stops between steps only."""
    expected, outcome = undisturbed(world, options=options)
    with create("threaded") as engine:
        stopped = Run(world, engine, shared_path, options=options).fit(After(looks))
    with create("threaded") as engine:
        run = Run(world, engine, shared_path, options=options)
        ended = run.fit()

    assert (stopped.finished, ended.finished) == (False, True)
    assert (run.trainer.at.step, run.trainer.at.epoch) == (2 * EPOCHS, EPOCHS)
    assert_equal(everything(run.state), expected)
    assert ended.values == outcome.values


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_max_steps_counts_steps_not_batches(world, shared_path, steps):
    options = Options(accumulate=3)
    expected, _ = undisturbed(world, options=options)
    with create("threaded") as engine:
        first = Run(world, engine, shared_path, options=options, max_steps=steps)
        first.fit()
    with create("threaded") as engine:
        run = Run(world, engine, shared_path, options=options)
        run.fit()

    assert first.trainer.at.step == steps
    assert_equal(everything(run.state), expected)


def test_steps_of_several_batches_are_those_of_larger_batches(world):
    """One epoch in the order of the records: 17 records in 5, 5, 5 and 2."""
    with create("serial") as engine:
        run = Run(world, engine, None, mean=False, options=Options(accumulate=4), epochs=1)
        outcome = run.fit()
        large = Run(world, engine, None, mean=False, options=Options(), epochs=1)
        large.trainer.train = Loader(
            InMemory(),
            Plan(RECORDS, RECORDS, seed=2),
            world.rank,
            world.size,
            engine,
            dtype="f8",
        )
        expected = large.fit()

    assert (run.trainer.at.step, large.trainer.at.step) == (1, 1)
    np.testing.assert_allclose(
        run.state.flat.weights, large.state.flat.weights, rtol=1e-11, atol=1e-13
    )
    assert outcome.values == pytest.approx(expected.values, rel=1e-10)


def rank_of(run, number):
    """Return step and rank of a record in the first epoch."""
    plan = run.loader.plan.epoch(0)
    for step in range(plan.steps):
        for rank in range(run.loader.size):
            if number in plan.batch(step, rank, run.loader.size)[0]:
                return step, rank
    raise AssertionError


def test_a_skipped_step_is_told_with_its_rank(world):
    with create("threaded") as engine:
        options = Options(skip=True, loss_scale=8.0)
        run = Run(world, engine, None, mean=False, options=options, records=Poisoned(3))
        outcome = run.fit()
        step, rank = rank_of(run, 3)

    assert outcome.finished
    assert np.isfinite(run.state.flat.weights).all()
    assert np.isfinite(list(outcome.values.values())).all()
    said = [line for line in run.console.lines if "skipped" in line]
    if world.rank == 0:
        assert len(said) == EPOCHS
        assert said[0] == (
            f"step {step + 1} skipped: the gradient of rank {rank} is not finite "
            "(loss scale 8 -> 4)"
        )


def test_a_run_that_only_skips_comes_to_an_end(world, monkeypatch):
    monkeypatch.setattr("hpctrain.train.trainer.MAX_SKIPPED", 6)
    with create("serial") as engine:
        run = Run(
            world, engine, None, mean=False, options=Options(skip=True),
            records=Poisoned(*range(RECORDS)),
        )  # fmt: skip

        with pytest.raises(NumericError, match="6 steps up to step 6 were skipped"):
            run.fit()


@pytest.mark.parametrize("looks", [2, 5])
def test_the_loss_scale_goes_on_as_it_was(world, shared_path, looks):
    options, records = Options(skip=True, loss_scale=8.0), Poisoned(3)
    with create("serial") as engine:
        whole = Run(world, engine, None, options=options, records=records, mean=False)
        whole.fit()
    with create("threaded") as engine:
        Run(world, engine, shared_path, options=options, records=records, mean=False).fit(
            After(looks)
        )
    with create("threaded") as engine:
        run = Run(world, engine, shared_path, options=options, records=records, mean=False)
        run.fit()

    assert run.trainer.step.scale == whole.trainer.step.scale
    assert run.trainer.step.scale.skipped == EPOCHS
    assert_equal(everything(run.state), everything(whole.state))


@pytest.mark.parametrize("looks", [1, 6])
def test_a_sharded_run_goes_on_bit_for_bit(world, shared_path, looks):
    options = Options(sharded=True)
    with create("serial") as engine:
        whole = Run(world, engine, None, options=options)
        whole.fit()
    with create("threaded") as engine:
        Run(world, engine, shared_path, options=options).fit(After(looks))
    with create("threaded") as engine:
        run = Run(world, engine, shared_path, options=options)
        run.fit()

    np.testing.assert_array_equal(run.state.flat.weights, whole.state.flat.weights)
    for name, array in whole.state.optimizer.items():
        np.testing.assert_array_equal(run.state.optimizer[name], array)


@pytest.mark.parametrize("sharded", [(True, False), (False, True)], ids=["apart", "together"])
def test_a_sharded_run_goes_on_with_other_ranks(world, shared_path, sharded):
    """From all ranks, each with a part, to one of its own, or the other way about."""
    alone = world.split(world.rank)
    first, second = (Options(sharded=each) for each in sharded)
    groups = (world, alone) if sharded[0] else (alone, world)
    with create("threaded") as engine:
        path = shared_path if groups[0] is world or world.rank == 0 else None
        Run(groups[0], engine, path, mean=False, options=first).fit(After(6))
    world.barrier()
    if groups[1] is world or world.rank == 0:
        with create("threaded") as engine:
            run = Run(groups[1], engine, shared_path, mean=False, options=second)
            run.fit()
    with create("serial") as engine:
        expected = Run(alone, engine, None, mean=False, options=Options())
        expected.fit()
        if groups[1] is world or world.rank == 0:
            np.testing.assert_allclose(
                run.state.flat.weights, expected.state.flat.weights, rtol=1e-9, atol=1e-12
            )
    alone.free()
