"""Corrections of late gradients against NumPy, and against serial twins."""

import numpy as np
import pytest
from replicas import batches, mlp, serial
from serving import in_steps, served

from hpctrain.errors import ConfigError
from hpctrain.optim import SGD, Adam
from hpctrain.parallel.lateness import Ahead, delayed
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
    """Against the algorithm as the paper states it, for pushes in some order."""
    rng = np.random.default_rng(3)
    optimizer, n, workers = SGD(momentum=MOMENTUM), 10, (5, 6, 7)
    weight, state = rng.standard_normal(n), optimizer.make_state(n, np.float64)
    ahead = Ahead(optimizer, state, workers)
    theta, velocity = weight.copy(), {worker: np.zeros(n) for worker in workers}

    for worker in (5, 6, 6, 7, 5, 7):
        grad = rng.standard_normal(n)
        own = ahead.begin(worker, 0, n)
        optimizer.update(weight, grad, own, lr=RATE, step=0)
        ahead.end(worker, 0, n)
        ahead.move(0, RATE)
        velocity[worker] = MOMENTUM * velocity[worker] + grad
        theta -= RATE * velocity[worker]
        sent = theta - RATE * MOMENTUM * sum(velocity.values())
        np.testing.assert_allclose(weight, theta, rtol=1e-12)
        np.testing.assert_allclose(ahead.of(0, weight, 0, n), sent, rtol=1e-11)

    np.testing.assert_allclose(state["momentum"], sum(velocity.values()) / 3, rtol=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("kind", [Adam(), SGD(), SGD(momentum=0.9, nesterov=True)])
def test_without_a_plain_velocity_there_is_nothing_ahead(kind):
    with pytest.raises(ConfigError, match="needed sgd with a momentum above 0"):
        Ahead(kind, kind.make_state(3), (1,))


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
