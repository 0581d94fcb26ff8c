"""A training step on a GPU makes the update that the host makes; skipped without one."""

import numpy as np
import pytest

from hpctrain import backend, models
from hpctrain.comm.group import Group
from hpctrain.engine import create
from hpctrain.optim import SGD, Constant
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.program import Objective
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import Work

NAMES = ("mlp", "lenet", "gpt")


def trained(name, device, group: Group):
    """Return the parameters after two steps on ``device``, on the host."""
    work = models.small_workload(name)
    work.net.initialize(ctx=device, seed=1)
    optimizer = SGD(momentum=0.9)
    state = ModelState(work.net.collect_params(), optimizer)
    inputs, labels = work.make(np.random.default_rng(group.rank))
    piece = Work((inputs,), (labels,), work.batch, work.batch * group.size)
    with create() as engine:
        goal, schedule = Objective(work.net, work.loss), Constant(base_lr=0.05)
        step = DataParallel(goal, state, optimizer, schedule, engine, group)
        step.prepare(*piece.specs())
        for _ in range(2):
            step.result(step.step(piece))
        engine.wait_all()
    return backend.to_host(state.flat.weights)


def check(name, device, group):
    expected, found = trained(name, backend.CPU, group), trained(name, device, group)

    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    assert np.abs(expected).max() > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_trains_like_the_host(name, world):
    check(name, backend.Device("gpu", 0), world)


@pytest.mark.parametrize("name", NAMES)
def test_a_second_device_of_the_host_does(name, world):
    check(name, backend.Device("cpu", 1), world)
