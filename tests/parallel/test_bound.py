"""A bound step: what one run of it costs beside its kernels."""

import tracemalloc

import numpy as np
import pytest
from two_kernels import needs_dnnl

from hpctrain import backend, models, optim
from hpctrain.graph.native import available
from hpctrain.graph.pool import Pool
from hpctrain.parallel.bound import BoundStep
from hpctrain.parallel.program import Objective
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import Options, Work

pytestmark = [
    pytest.mark.serial,
    needs_dnnl,
    pytest.mark.skipif(not available(), reason="LLVM is not installed"),
]


@pytest.mark.parametrize("name", ["resnet20", "lenet"])
def test_a_step_allocates_no_array(name):
    work = models.workload(name, 16)
    work.net.initialize(ctx=backend.CPU)
    state = ModelState(work.net.collect_params(), optim.SGD())
    part = Work(*((array,) for array in work.make(np.random.default_rng(0))), 16, 16)
    options = Options(fuse=True)
    bound = BoundStep(Objective(work.net, work.loss), state, part.specs(), Pool(), options)
    bound.feed(part, 0)
    bound.run.run()
    bound.run.run()
    tracemalloc.start()
    try:
        for _ in range(3):
            bound.run.run()
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 8192
    assert left < 4096
