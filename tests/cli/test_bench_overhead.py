"""What a step of tiny layers takes beyond its kernels."""

import numpy as np
import pytest

from hpctrain.cli import bench_overhead
from hpctrain.comm.world import start
from hpctrain.graph.native import available

pytestmark = pytest.mark.serial


def test_a_step_and_its_plan_are_measured_beside_the_bare_calls():
    with start() as world:
        found = bench_overhead.measure(world, layers=3, width=16, batch=32, steps=15)

    # forward 2 for each layer, backward 3, and some for the loss
    assert found["kernels"] >= 3 * (5 if available() else 6)
    assert 0 < found["numpy_us"] < found["step_us"]
    assert found["plan_us"] < found["step_us"]


def test_the_bare_calls_are_those_of_a_step():
    calls = bench_overhead._calls(layers=2, width=4, batch=3)
    done = [call for call in calls if call.func is np.matmul]

    for call in calls:
        call()

    assert len(done) == 3 * 2
    assert all(np.isfinite(call.args[2]).all() for call in done)
