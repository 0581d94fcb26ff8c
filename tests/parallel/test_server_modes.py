"""Servers that do not wait, or not for long; compressed; with settings that change."""

from itertools import pairwise

import numpy as np
import pytest
from replicas import SCHEDULE, batches, mlp, share
from serving import in_steps, served

from hpctrain.comm.compress import codec
from hpctrain.optim import SGD, Adam, Constant
from hpctrain.parallel.terms import Terms
from hpctrain.parallel.work import LAG, Options

pytestmark = pytest.mark.mpi(min_size=2)

STEPS = 8


def data(steps=STEPS, count=12):
    return batches([(count, 6)] * steps)


def float32(model):
    """Cast a small model."""
    for parameter in model.parameters.values():
        parameter.cast(np.float32)
    return model


def weights(state):
    return state.flat.weights[len(state.flat.riders) :].copy()


def equal_on_workers(world, state, servers=1):
    """Whether all workers have the parameters of the first one, and the servers their parts."""
    mine = weights(state)
    first = mine.copy()
    world.bcast(first, servers)
    return bool((mine == first).all()) if world.rank >= servers else True


def begin(step, steps, staleness):
    """Make the steps that need nobody else, and see those results that need nobody."""
    group = step.group
    if group.rank == group.size - 1:
        for rank in range(group.size - 1):
            group.recv(np.empty(1), rank, 7)
        return []
    done = [step.step(share(b, group)) for (b,) in steps[: staleness + 1][: LAG + 1]]
    for number in done[:staleness]:
        step.result(number)
    group.send(np.zeros(1), group.size - 1, 7)
    return done[staleness:] if staleness else done


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_fast_worker_gets_ahead_by_the_staleness_and_no_further(world, staleness):
    """The straggler waits for word from the fast ones, not for a clock."""

    def use(step, steps):
        open_, made = begin(step, steps, staleness), step.step_number
        for (batch,) in steps[made:]:
            open_.append(step.step(share(batch, step.group)))
            while len(open_) > LAG:
                step.result(open_.pop(0))
        for number in open_:
            step.result(number)
        step.engine.wait_all()
        step.catch_up()
        return [True]

    results, state = served(
        mlp(), SGD(), world, data(), Terms(mode="bounded", staleness=staleness), use=use
    )

    assert results == ([True] if world.rank else {"do": "stop", "finished": True})
    assert equal_on_workers(world, state)


@pytest.mark.mpi(min_size=3)
def test_async_workers_end_although_one_begins_when_all_others_have_ended(world):
    workers = world.size - 1

    def use(step, steps):
        group = step.group
        if group.rank == workers - 1:
            for rank in range(workers - 1):
                group.recv(np.empty(1), rank, 7)
        results = in_steps(step, steps)
        if group.rank < workers - 1:
            group.send(np.zeros(1), workers - 1, 7)
        told = [(r.loss_sum, r.count) for r in results]
        loss, _, count = step.catch_up()
        return [*told, (loss, count)]

    results, state = served(mlp(), SGD(), world, data(), Terms(mode="async"), use=use)

    assert equal_on_workers(world, state)
    if world.rank:  # every worker hears of every sample once
        assert sum(count for _, count in results) == 12 * STEPS


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", ["fp16", "2bit", "topk"])
def test_compressed_both_ways_workers_end_with_the_servers_parameters(world, mode, name):
    terms = Terms(mode=mode, codec=lambda: codec(name, threshold=0.01, ratio=0.3))

    def use(step, steps):
        results = in_steps(step, steps)
        step.catch_up()
        return [results[0].loss, results[-1].loss]

    steps = [(x.astype(np.float32), y) for x, y in data(1)] * 60
    results, state = served(float32(mlp()), SGD(), world, steps, terms, use=use)

    assert equal_on_workers(world, state)
    if world.rank and mode == "sync":
        assert results[-1] < results[0]
    elif world.rank:
        assert len(set(results)) > 1  # it learns something
    mine = weights(state)
    world.bcast(mine, 1)
    if world.rank == 0:  # one server keeps everything
        np.testing.assert_array_equal(weights(state), mine)


@pytest.mark.parametrize("compensation", [0.0, 0.5])
def test_late_gradients_can_be_compensated(world, compensation):
    terms = Terms(mode="async", compensation=compensation)

    def use(step, steps):
        results = in_steps(step, steps)
        step.catch_up()
        return [results[0].loss, results[-1].loss]

    _, state = served(mlp(), SGD(momentum=0.5), world, data(1) * 40, terms, use=use)

    assert equal_on_workers(world, state)
    assert np.isfinite(weights(state)).all()


def test_settings_change_while_it_runs(world):
    """T10: rate, clipping and optimizer take effect at the next step."""

    def use(step, steps):
        found = [weights(step.state)]
        for (batch,), change in zip(
            steps,
            [{}, {"schedule": Constant(base_lr=0.0)}, {"schedule": SCHEDULE, "clip_norm": 1e-6},
             {"clip_norm": 0.0, "optimizer": Adam()}],
            strict=False,
        ):  # fmt: skip
            if change:
                step.change(**change)
            step.result(step.step(share(batch, step.group)))
            step.engine.wait_all()
            found.append(weights(step.state))
        return [float(np.abs(b - a).max()) for a, b in pairwise(found)]

    results, _ = served(mlp(), SGD(), world, data(4), Terms(), use=use)

    if world.rank:
        first, second, third, fourth = results
        assert first > 1e-4 and second == 0 and 0 < third < 1e-7
        assert fourth == pytest.approx(SCHEDULE.base_lr, rel=1e-3)  # Adam's first step


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("near", [True, False], ids=["near", "far"])
def test_what_is_not_finite_is_left_out_by_the_worker_that_has_it(world, near):
    """In MXNet overflow is found after the push, when the server has updated already."""
    steps = data()
    steps[2][0][-1] = np.inf  # a record of the last worker

    def use(step, batches):
        step.begin_at(0)
        results = in_steps(step, batches)
        step.catch_up()
        return [(r.skipped, r.mine, r.next_scale) for r in results]

    terms = Terms(mode="async", shared=near)
    options = Options(skip=True, loss_scale=8.0)
    results, state = served(mlp(), SGD(), world, steps, terms, options, use=use)

    assert np.isfinite(weights(state)).all() and equal_on_workers(world, state)
    if world.rank:
        bad = world.rank == world.size - 1
        assert [skipped for skipped, _, _ in results] == [bad and i == 2 for i in range(STEPS)]
        assert [mine for _, mine, _ in results] == [bad and i == 2 for i in range(STEPS)]
        assert results[-1][2] == (4.0 if bad else 8.0)
