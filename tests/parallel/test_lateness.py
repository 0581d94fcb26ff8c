"""Corrections of late gradients against NumPy, and against serial twins."""

import numpy as np
import pytest
from posted import Served
from replicas import SCHEDULE, batches, mlp, serial
from serving import in_steps, served

from hpctrain.engine import create
from hpctrain.optim import SGD, Adam
from hpctrain.parallel.lateness import Ahead, delayed
from hpctrain.parallel.server import lanes_of_server
from hpctrain.parallel.terms import Terms

MOMENTUM, RATE = 0.8, 0.1


@pytest.mark.serial
def test_a_late_gradient_is_moved_by_its_square():
    rng = np.random.default_rng(2)
    grad, now, had = rng.standard_normal((3, 20))

    (found,) = delayed(lambda a, b: [grad[a:b]], now, had, 0.3)(4, 20)

    np.testing.assert_allclose(found, (grad + 0.3 * grad**2 * (now - had))[4:], rtol=1e-14)


@pytest.mark.serial
def test_velocities_of_workers_are_those_of_dana():
    """Against DANA-Zero as the paper states it: what it sends to workers is what is kept."""
    rng = np.random.default_rng(3)
    optimizer, n, workers = SGD(momentum=MOMENTUM), 10, (5, 6, 7)
    weight, state = rng.standard_normal(n), optimizer.make_state(n, np.float64)
    ahead = Ahead(optimizer.ahead(), state, workers, [0])
    theta, velocity = weight.copy(), {worker: np.zeros(n) for worker in workers}

    for worker in (5, 6, 6, 7, 5, 7):
        grad = rng.standard_normal(n)
        ahead.optimizer.update(weight, grad, ahead.of(worker), lr=RATE, step=0)
        velocity[worker] = MOMENTUM * velocity[worker] + grad
        theta -= RATE * velocity[worker]
        sent = theta - RATE * MOMENTUM * sum(velocity.values())
        np.testing.assert_allclose(weight, sent, rtol=1e-11)

    ahead.settle()
    np.testing.assert_allclose(state["momentum"], sum(velocity.values()) / 3, rtol=1e-12)


def nadam(grad, mean, square, step):
    """One step of NAdam as Dozat writes it, for a rate of 1: the direction."""
    b1, b2 = 0.9, 0.999
    mean = b1 * mean + (1 - b1) * grad
    square = b2 * square + (1 - b2) * grad**2
    lead = b1 * mean / (1 - b1 ** (step + 2)) + (1 - b1) * grad / (1 - b1 ** (step + 1))
    return lead / (np.sqrt(square / (1 - b2 ** (step + 1))) + 1e-8), mean, square


def nesterov(grad, velocity, unused, step):
    """One step of Nesterov's momentum, for a rate of 1: the direction."""
    velocity = MOMENTUM * velocity + grad
    return grad + MOMENTUM * velocity, velocity, unused


@pytest.mark.serial
@pytest.mark.parametrize(
    ("optimizer", "rule"), [(SGD(momentum=MOMENTUM), nesterov), (Adam(), nadam)]
)
def test_a_server_adds_up_the_steps_of_workers_with_states_of_their_own(optimizer, rule):
    """Against a replay: shares, rates by the worker's step, and its own number of steps."""
    terms = Terms(mode="async", ahead=True)
    with create("serial", lanes_of_server(1)) as engine:
        server = Served(mlp(), terms, 3, engine, optimizer=optimizer)
        a, b = server.spans[1]
        expected = server.state.flat.weights[a:b].copy()
        states = dict.fromkeys((1, 2, 3), (0.0, 0.0, 0))
        pushes = [(1, 0.5, 2.0), (2, 0.2, -1.0), (1, 0.5, 0.3), (3, 0.0, 9.0), (3, 0.3, 0.1)]
        for version, (worker, share, value) in enumerate(pushes):
            server.push(worker, version, index=1, value=value * share, share=share)
            server.step()
            if share:
                first, second, made = states[worker]
                direction, *states[worker] = rule(value, first, second, made)
                states[worker] = (*states[worker], made + 1)
                expected = expected - SCHEDULE.lr(version) * share * direction

        np.testing.assert_allclose(server.state.flat.weights[a:b], expected, rtol=1e-12)
        server.server.parts.settle()
        means = server.state.optimizer[optimizer.state_names[0]][a:b]
        np.testing.assert_allclose(means, sum(s[0] for s in states.values()) / 3, rtol=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize(("workers", "bound"), [(3, 0.96), (7, 0.79)])
def test_late_gradients_are_borne_up_to_the_curvature_that_is_stated(workers, bound):
    """A parabola, whose gradient each worker takes where it was after its last push."""

    def ends(curvature):
        weight, kind = np.ones(1), SGD(momentum=0.9)
        ahead = Ahead(kind.ahead(), kind.make_state(1, np.float64), range(workers), [0])
        had = dict.fromkeys(range(workers), 1.0)
        for step in range(300):
            for worker in range(workers):
                grad = curvature * np.full(1, had[worker])
                state, rate = ahead.of(worker), 1.0 / workers
                ahead.optimizer.update(weight, grad, state, lr=rate, step=step)
                had[worker] = weight[0]
        return abs(weight[0])

    assert ends(0.95 * bound) < 1e-2 < 10 < ends(1.05 * bound)


@pytest.mark.serial
def test_a_run_that_goes_on_begins_with_the_mean_of_all_momentum():
    """Nothing is lost of what all together were about to do."""
    with create("serial", lanes_of_server(1)) as engine:
        terms = Terms(mode="bounded", staleness=3, ahead=True)
        server = Served(mlp(), terms, 2, engine, optimizer=SGD(momentum=MOMENTUM))
        server.push(1, 0, index=1, value=1.0)
        server.step()
        server.push(2, 0, index=1, value=3.0)
        server.step()
        parts, (a, b) = server.server.parts, server.spans[1]

        parts.start(1)

        for worker in 1, 2:
            np.testing.assert_allclose(parts.ahead.of(worker)["momentum"][a:b], 4.0)


@pytest.mark.serial
def test_without_momentum_there_is_nothing_ahead():
    assert SGD().ahead() is None
    with create("serial", lanes_of_server(1)) as engine:
        server = Served(mlp(), Terms(mode="async", ahead=True), 2, engine)
        assert server.server.parts.ahead is None


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("shared", [True, False])
def test_with_one_worker_it_is_the_momentum_of_nesterov(world, shared):
    group = world.split(0 if world.rank < 2 else 1 + world.rank)
    if group.size == 2:
        steps, model, twin = batches([(12, 6)] * 6), mlp(), mlp()
        terms = Terms(mode="async", ahead=True, shared=shared)
        results, _ = served(
            model, SGD(momentum=MOMENTUM), group, steps, terms, use=in_steps, slice_bytes=256
        )
        if group.rank:
            expected = serial(twin, SGD(momentum=MOMENTUM, nesterov=True), steps)
            losses = [result.loss_sum for result in results]
            np.testing.assert_allclose(losses, [loss for loss, *_ in expected], rtol=1e-12)
            for name, parameter in model.parameters.items():
                there = twin.parameters[name].data().array
                np.testing.assert_allclose(parameter.data().array, there, rtol=1e-11)
    group.free()
