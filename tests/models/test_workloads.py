"""The benchmark's workloads, small."""

import numpy as np
import pytest

from hpctrain.autograd import Tensor, backward, record
from hpctrain.errors import ConfigError
from hpctrain.models.workloads import WORKLOADS, small_workload, workload

pytestmark = pytest.mark.serial

SHAPES = {
    "mlp": ((128, 784), (128,)),
    "lenet": ((64, 28, 28, 1), (64,)),
    "resnet20": ((64, 3, 32, 32), (64,)),
    "lstm": ((35, 32), (35, 32)),
    "gpt": ((8, 128), (8, 128)),
    "cosmo": ((8, 4, 32, 32, 32), (8, 4)),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_sizes_are_those_of_the_benchmark(name):
    work = workload(name)

    x, y = work.make(np.random.default_rng(0))

    assert (x.shape, y.shape) == SHAPES[name]
    assert x.dtype == (np.int64 if name in ("lstm", "gpt") else np.float32)
    assert y.dtype == (np.float32 if name == "cosmo" else np.int64)
    assert x.shape[work.batch_axis] == work.batch


@pytest.mark.parametrize("name", WORKLOADS)
def test_gradient_descent_lowers_the_loss(name):
    work = small_workload(name)
    work.net.initialize(seed=1)
    x, y = (Tensor(a) for a in work.make(np.random.default_rng(0)))
    losses = []

    for _ in range(3):
        with record():
            loss = work.loss(work.net(x), y)
        backward(loss)
        assert loss.shape == (6,)
        losses.append(float(loss.asnumpy().mean()))
        for parameter in work.net.collect_params().values():
            if parameter.differentiable:
                parameter.data().array[...] -= 0.01 / 6 * parameter.grad().asnumpy()

    assert losses[-1] < losses[0]


def test_an_unknown_workload_is_named():
    with pytest.raises(ConfigError, match="got 'bert', needed one of mlp"):
        workload("bert")
