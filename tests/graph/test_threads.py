"""Compiled kernels on several threads: the same bits, every part once."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Spec
from hpctrain.graph import native, threads
from hpctrain.graph.capture import capture
from hpctrain.graph.execute import Executor
from hpctrain.graph.passes import FUSED, optimise
from hpctrain.graph.plan import make_plan

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(not native.available(), reason="LLVM is not installed"),
]
SHAPES = [(300_007,), (2111, 96), (3, 40_000), (5, 7)]


@pytest.fixture
def several():
    before = threads._settings().threads
    threads.limit(3)
    if threads.threads() != 3:
        threads.limit(before)
        pytest.skip("no OpenMP runtime")
    yield
    threads.limit(before)


def results(function, arrays):
    graph = optimise(capture(function, [Spec.of(a) for a in arrays]), FUSED)
    plan = make_plan(graph)
    outs = [np.full(s.shape, np.nan, s.dtype) for s in map(graph.specs.get, graph.outputs)]
    run = Executor(plan, [a * 1 for a in ()], dict(enumerate(outs)))
    for _ in range(3):
        run(arrays)
    return outs


def elementwise(x, y):
    return ops.tanh(x * y) + x


def with_sums(x, y):
    z = ops.relu(x * y + x)
    return z, ops.sum(z, axis=(0,), keepdims=False)


@pytest.mark.parametrize("function", [elementwise, with_sums])
@pytest.mark.parametrize("shape", SHAPES)
def test_threads_give_the_bits_of_one(several, function, shape):
    rng = np.random.default_rng(1)
    arrays = list(rng.standard_normal((2, *shape)).astype(np.float32))
    on_three = results(function, arrays)
    threads.limit(1)

    on_one = results(function, arrays)

    assert all(np.array_equal(a, b) for a, b in zip(on_three, on_one, strict=True))
    assert not any(np.isnan(a).any() for a in on_three)


def test_a_long_kernel_is_cut_for_the_threads_and_a_short_one_is_not(several, monkeypatch):
    counts = []
    run = threads.together
    monkeypatch.setattr(
        "hpctrain.graph.nest.together", lambda calls: counts.append(len(calls)) or run(calls)
    )

    results(elementwise, [np.ones((2000, 100), np.float32)] * 2)
    results(elementwise, [np.ones((20, 10), np.float32)] * 2)

    assert set(counts) == {3}
