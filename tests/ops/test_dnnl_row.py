"""Rows with two kernels: when each runs, and on what memory."""

import threading
import tracemalloc

import numpy as np
import pytest
from two_kernels import kernels, needs_dnnl, poisoned, program, run

from hpctrain import ops
from hpctrain.autograd import Spec, primitive
from hpctrain.graph.capture import capture
from hpctrain.graph.plan import make_plan
from hpctrain.ops import dnnl

pytestmark = [pytest.mark.serial, needs_dnnl]

ATTRS = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    shapes = (4, 12, 12, 16), (16, 3, 3, 16)
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]


def test_a_bound_program_allocates_nothing():
    row, (x, weight) = primitive("conv"), arrays()
    specs = [Spec.of(x), Spec.of(weight)]
    outs, scratch = poisoned(row.infer(specs, **ATTRS)), poisoned(row.scratch(specs, **ATTRS))
    ready = row.bind(np, [x, weight], outs, scratch, **ATTRS)
    ready()
    tracemalloc.start()

    for _ in range(20):
        ready()

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2048


def test_scratch_is_asked_for_by_its_size():
    specs = [Spec.of(a) for a in arrays()]

    (wanted,) = primitive("conv").scratch(specs, **ATTRS)

    assert wanted == Spec((program("conv", arrays(), **ATTRS).nbytes,), np.dtype(np.uint8))


def test_scratch_for_another_program_is_refused():
    row, (x, weight) = primitive("conv"), arrays()
    outs = poisoned(row.infer([Spec.of(x), Spec.of(weight)], **ATTRS))

    with pytest.raises(AssertionError, match="another program"):
        row.kernel(np, [x, weight], outs, [np.empty(1, np.uint8)], **ATTRS)


@pytest.mark.parametrize(("name", "views"), [("auto", 0), ("numpy", 1)])
def test_a_plan_makes_the_copy_that_a_kernel_would_make_in_each_call(name, views):
    specs = [Spec((4, 16, 12, 12), np.dtype(np.float32)), Spec.of(arrays()[1])]

    with kernels(name):
        graph = capture(lambda x, w: ops.conv(ops.transpose(x, (0, 2, 3, 1)), w), specs)
        plan = make_plan(graph)

    assert len(plan.views) == views


def test_without_the_library_numpy_runs_within_the_scratch_that_it_asks_for():
    with kernels("numpy"):
        assert program("conv", arrays(), **ATTRS) is None
        slow = run("conv", arrays(), **ATTRS)

    np.testing.assert_allclose(slow[0], run("conv", arrays(), **ATTRS)[0], rtol=0, atol=2e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_program_takes_the_threads_that_were_allowed_when_it_was_made(threads):
    before = dnnl.settings().threads
    dnnl.limit(threads)
    try:
        made = program("conv", arrays(), **ATTRS)
        y = run("conv", arrays(), **ATTRS)
    finally:
        dnnl.limit(before)

    assert made.threads == threads
    np.testing.assert_allclose(y[0], run("conv", arrays(), **ATTRS)[0], rtol=0, atol=2e-4)


def test_threads_may_run_one_operation_at_the_same_time():
    expected = [run("conv", arrays(seed), **ATTRS)[0] for seed in range(3)]
    wrong = []

    def work(seed):
        for _ in range(30):
            if not np.array_equal(run("conv", arrays(seed), **ATTRS)[0], expected[seed]):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert wrong == []
