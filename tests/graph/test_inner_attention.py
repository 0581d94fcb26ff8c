"""Softmax of attention in compiled passes, between products: against NumPy in double."""

import importlib.util

import numpy as np
import pytest
from attention_cases import SIZES, arrays, attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from two_kernels import check_fences, kernels, needs_dnnl, poisoned, run

from hpctrain import backend, models, ops
from hpctrain.autograd import Spec, primitive
from hpctrain.autograd.element import largest, total, where
from hpctrain.graph.capture import capture_gradient
from hpctrain.graph.inner import inner_loop
from hpctrain.graph.passes import EXACT, FUSED, optimise
from hpctrain.ops import dnnl
from hpctrain.ops.dnnl_narrow import lacking

pytestmark = [
    pytest.mark.serial,
    pytest.mark.usefixtures("own_cache"),
    pytest.mark.skipif(importlib.util.find_spec("llvmlite") is None, reason="no llvmlite"),
]


@pytest.fixture(autouse=True)
def one_thread():
    """Passes are taken on one thread only."""
    before = dnnl.settings().threads
    dnnl.limit(1)
    yield
    dnnl.limit(before)


def run_passes(name, arrays, **attrs):
    """Bind a row with its passes compiled, and run it twice."""
    row, specs = primitive(name), [Spec.of(a) for a in arrays]
    assert row.kernel.__self__.program(specs, attrs, loops=True) is not None
    outs = poisoned(row.infer(specs, **attrs))
    scratch = poisoned(row.scratch(specs, loop=inner_loop, **attrs))
    ready = row.bind(np, arrays, outs, scratch, loop=inner_loop, **attrs)
    ready()
    ready()
    check_fences([*outs, *scratch])
    return outs


def doubled(name, arrays, **attrs):
    """Run a row in NumPy, in double precision."""
    with kernels("numpy"):
        return run(name, [np.asarray(a, np.float64) for a in arrays], **attrs)


def assert_near(have, want, limit):
    for a, b in zip(have, want, strict=True):
        np.testing.assert_allclose(a, b, 0, limit * max(1, np.abs(b).max(initial=0)))


@needs_dnnl
@given(SIZES, st.booleans(), st.integers(0, 9))
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_averages_and_gradients_are_those_of_numpy(sizes, causal, seed):
    qkv, dy = arrays(*sizes, seed)
    given_ = attrs(*sizes[2:], causal)

    y, saved = run_passes("self_attention", [qkv], **given_)
    slope = run_passes("self_attention_grad", [dy, qkv, saved], **given_)

    want = doubled("self_attention", [qkv], **given_)
    assert_near([y, saved], want, 2e-6)
    back = doubled("self_attention_grad", [dy, qkv, want[1]], **given_)
    assert_near(slope, back, 5e-6)


@pytest.mark.skipif(bool(lacking()), reason="no bfloat16 here")
@pytest.mark.parametrize("causal", [True, False])
def test_so_are_those_with_factors_of_two_bytes(causal):
    qkv, dy = (a.astype(backend.bfloat16()) for a in arrays(2, 150, 2, 32, 1))
    given_ = attrs(2, 32, causal)

    y, saved = run_passes("self_attention", [qkv], **given_)
    slope = run_passes("self_attention_grad", [dy, qkv, saved], **given_)

    want = doubled("self_attention", [qkv], **given_)
    assert_near([y, saved], want, 4e-3)
    assert_near(slope, doubled("self_attention_grad", [dy, qkv, want[1]], **given_), 8e-3)


@needs_dnnl
def test_large_scores_do_not_overflow_and_later_keys_do_not_matter():
    qkv, dy = arrays(1, 150, 2, 16)
    qkv *= 30
    given_ = attrs(2, 16, True)
    y, saved = run_passes("self_attention", [qkv], **given_)
    (slope,) = run_passes("self_attention_grad", [dy, qkv, saved], **given_)
    other = qkv.copy()
    other[:, 101:, 32:] = np.nan  # keys and values of queries that are not asked for
    other[:, 101:, :32] = 1e30

    again, _ = run_passes("self_attention", [other], **given_)

    assert all(np.isfinite(a).all() for a in (y, saved, slope))
    np.testing.assert_array_equal(again[:, :64], y[:, :64])


@needs_dnnl
def test_only_plans_that_fuse_compile_passes():
    net = models.GPT(vocab=11, width=32, heads=2, depth=1, steps=16)
    net.initialize()
    leaves = [p.data() for p in net.collect_params().values()]
    tokens = Spec((2, 16), np.dtype(np.int64))
    graph = capture_gradient(lambda t: ops.sum(net(t)), [tokens], leaves, leaves)

    def passes(graph):
        return [n.row.loops for n in graph.nodes if n.row.name.startswith("self_attention")]

    assert passes(optimise(graph, EXACT)) == [True, True]
    assert passes(optimise(graph, FUSED)) == [False, False]


def _sum_and_top(a, b):
    return [total(a * b), a + b, largest(where(a < b, a, -np.inf))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 100, 8192 + 16 + 3])
def test_rows_fold_to_their_sum_and_their_largest_element(dtype, columns):
    rng = np.random.default_rng(columns)
    a, b = (rng.integers(-9, 9, (1, 2, 3, columns)).astype(dtype) for _ in range(2))
    a[0, 0, 0, 0] = np.nan
    a[0, 1, 1] = 9  # none is smaller
    made = np.full_like(a, 7)
    whole, top = (np.full((1, 2, 4, 1), 7, dtype) for _ in range(2))

    inner_loop(_sum_and_top, [a, b], [whole[:, :, :3], made, top[:, :, :3]])(0)

    np.testing.assert_array_equal(made, a + b)
    np.testing.assert_array_equal(whole[:, :, :3, 0], (a * b).sum(-1))
    seen = np.where(a < b, a, -np.inf)
    np.testing.assert_array_equal(top[:, :, :3, 0], seen.max(-1))
    assert (whole[:, :, 3] == 7).all() and (top[:, :, 3] == 7).all()


def test_a_loop_of_several_steps_may_begin_anew():
    a = np.arange(12.0, dtype=np.float32).reshape(3, 2, 2)
    whole = np.zeros((3, 2, 1), np.float32)
    run_step = inner_loop(_total_of, [a], [whole])

    for t in (2, 1, 0, 1, 0):
        whole[t] = -1
        run_step(t)

    np.testing.assert_array_equal(whole[..., 0], a.sum(-1))


def _total_of(a):
    return [total(a)]
