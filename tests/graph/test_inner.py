"""Loops compiled inside of recurrences: against the kernels in NumPy, and differences."""

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_kernels import check_fences, kernels, poisoned, run, strided

from hpctrain import backend, nn, ops
from hpctrain.autograd import Spec, Tensor, primitive
from hpctrain.graph.capture import capture, capture_gradient
from hpctrain.graph.execute import Executor
from hpctrain.graph.fuse import fuse
from hpctrain.graph.inner import inner_loop
from hpctrain.graph.passes import EXACT, FUSED, optimise
from hpctrain.graph.plan import make_plan
from hpctrain.ops.dnnl_narrow import lacking

pytestmark = [
    pytest.mark.serial,
    pytest.mark.usefixtures("own_cache"),
    pytest.mark.skipif(importlib.util.find_spec("llvmlite") is None, reason="no llvmlite"),
]
GATES = {"lstm": 4, "gru": 3}
LIMITS = {"float32": 3e-6, "float64": 1e-13}
SIZES = st.tuples(*(st.integers(*r) for r in ((0, 4), (0, 9), (0, 5), (1, 70))))


def layer(name, dtype, seed, t, b, i, h):
    """Return the inputs of a layer: x, states, both weights, biases."""
    gates = GATES[name]
    states = [(b, h)] * (2 if name == "lstm" else 1)
    rows = [(gates * h,)] * (1 if name == "lstm" else 2)
    rng = np.random.default_rng(seed)
    shapes = [(t, b, i), *states, (gates * h, i), (gates * h, h), *rows]
    return [(rng.standard_normal(s) * h**-0.5).astype(dtype) for s in shapes]


def gradient(name, given_, seed):
    """Return inputs of the row that is the gradient."""
    y, *ends, gates, kept = run(name, given_)
    rng = np.random.default_rng(seed)
    cotangents = [rng.standard_normal(a.shape).astype(a.dtype) for a in (y, *ends)]
    h0, c0, w_h = given_[1], given_[2], given_[-2 if name == "lstm" else -3]
    saved = [c0, w_h, gates, kept] if name == "lstm" else [h0, w_h, y, gates, kept]
    return [*cotangents, *saved]


def run_loops(name, arrays, over=False):
    """Run a row with its loops compiled; ``over``: gradients of gates over the gates."""
    row, specs = primitive(name), [Spec.of(a) for a in arrays]
    outs, scratch = poisoned(row.infer(specs)), poisoned(row.scratch(specs))
    if over:
        outs[0] = arrays[5].copy()
        arrays = [*arrays[:5], outs[0], arrays[6]]
    row.kernel(np, arrays, outs, scratch, loop=inner_loop)
    check_fences([*(outs[1:] if over else outs), *scratch])
    return outs


def assert_near(have, want, limit):
    for a, b in zip(have, want, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, 0, limit * max(1, np.abs(b).max(initial=0)))


@pytest.mark.slow
@given(
    sizes=SIZES, name=st.sampled_from(sorted(GATES)), dtype=st.sampled_from(sorted(LIMITS)),
    provider=st.sampled_from(["auto", "numpy"]), seed=st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_layers_and_gradients_are_those_of_numpy(sizes, name, dtype, provider, seed):
    arrays = layer(name, dtype, seed, *sizes)
    with kernels("numpy"):
        back = gradient(name, arrays, seed)
    for row, ins in ((name, arrays), (f"{name}_grad", back)):
        with kernels("numpy"):
            want = run(row, ins)
        with kernels(provider):
            have = run_loops(row, ins)
            others = [run_loops(row, [strided(a) for a in ins])]
            others += [run_loops(row, ins, over=True)] if row != name else []
        assert_near(have, want, LIMITS[dtype])
        for other in others:
            assert_near(other, have, LIMITS[dtype])


@pytest.mark.skipif(bool(lacking()), reason="no bfloat16 here")
@given(
    sizes=st.tuples(*(st.integers(*r) for r in ((1, 4), (1, 20), (1, 40), (20, 90)))),
    name=st.sampled_from(sorted(GATES)), seed=st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
def test_so_are_those_with_factors_of_two_bytes(sizes, name, seed):
    """To what they make of states that round to another neighbour."""
    arrays = layer(name, "float32", seed, *sizes)
    for place in (0, -2 if name == "lstm" else -3, -3 if name == "lstm" else -4):
        arrays[place] = arrays[place].astype(backend.bfloat16())
    for row, ins in ((name, arrays), (f"{name}_grad", gradient(name, arrays, seed))):
        with kernels("numpy"):
            want = run(row, ins)
        assert_near(run_loops(row, ins), want, 2e-3)


# In graphs


def planned(graph, leaves, inputs):
    """Run a graph as a plan whose arena and outputs are full of NaN, twice."""
    outs = [np.full(s.shape, np.nan, s.dtype) for s in (graph.specs[v] for v in graph.outputs)]
    executor = Executor(make_plan(graph), list(leaves))
    for _ in range(2):
        executor.arena[...] = 0xFF
        executor(inputs, outs)
    return outs


def rows_with_loops(graph):
    """Return which recurrences have loops that are compiled."""
    nodes = [n for n in graph.nodes if n.row.name.split("_")[0] in GATES]
    assert nodes
    return [n.row.name for n in nodes if not n.row.loops]


def leaves_of(arrays):
    """Return tensors that have gradients."""
    leaves = [Tensor(a) for a in arrays]
    for leaf in leaves:
        leaf.attach_grad()
    return leaves


def losses(name, leaves):
    """Return a function whose first output depends on all outputs of the layer."""

    def function():
        y, *ends = getattr(ops, name)(*leaves)[: GATES[name] - 1]
        return sum((ops.sum(ops.tanh(end)) for end in ends), ops.sum(ops.tanh(y)))

    return function


@pytest.mark.parametrize("name", sorted(GATES))
def test_only_the_pass_that_fuses_compiles_loops(name):
    leaves = leaves_of(layer(name, "float64", 0, 3, 2, 4, 5))
    graph = capture_gradient(losses(name, leaves), [], leaves, leaves)

    assert rows_with_loops(optimise(graph, EXACT)) == []
    assert rows_with_loops(fuse(optimise(graph, EXACT), compiled=False)) == []
    assert rows_with_loops(optimise(graph, FUSED)) == [name, f"{name}_grad"]
    assert primitive(name).loops


@pytest.mark.parametrize("name", sorted(GATES))
def test_gradients_agree_with_differences(name):
    arrays = layer(name, "float64", 2, 4, 3, 5, 6)
    leaves = leaves_of(arrays)
    value = optimise(capture(losses(name, leaves), [], leaves), FUSED)
    slopes = optimise(capture_gradient(losses(name, leaves), [], leaves, leaves), FUSED)
    _, *found = planned(slopes, arrays, [np.ones(())])

    rng, step = np.random.default_rng(3), 1e-5
    for place, slope in enumerate(found):
        way = rng.standard_normal(slope.shape)
        (high,), (low,) = (
            planned(value, [a + s * way if i == place else a for i, a in enumerate(arrays)], [])
            for s in (step, -step)
        )
        np.testing.assert_allclose((high - low) / (2 * step), (slope * way).sum(), 1e-7, 1e-9)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("dtype", sorted(LIMITS))
def test_sequences_with_padding_are_those_of_plans_without(kind, dtype):
    rng = np.random.default_rng(5)
    block = kind(7, num_layers=2, input_size=4)
    block.cast(dtype)
    block.initialize()
    x = rng.standard_normal((6, 5, 4)).astype(dtype)
    lengths = np.array([6, 0, 3, 1, 5], np.int32)
    leaves = [p.data() for p in block.collect_params().values()]

    def function(x, lengths):
        y, states = block(x, block.begin_state(5, x), lengths)
        return sum((ops.sum(s * s) for s in states), ops.sum(ops.tanh(y))), y, *states

    specs = [Spec.of(x), Spec.of(lengths)]
    graph = capture_gradient(function, specs, leaves, leaves)
    inputs = [x, lengths, np.ones((), dtype)]
    want, have = (
        planned(optimise(graph, passes), [t.array for t in leaves], inputs)
        for passes in (EXACT, FUSED)
    )

    assert_near(have, want, 10 * LIMITS[dtype])
    for sequence, length in enumerate(lengths):
        assert not have[1][length:, sequence].any()
