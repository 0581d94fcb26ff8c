"""Factors of products are rounded once, by whatever makes them; all else stays float32."""

import numpy as np
import pytest
from kernels import compiled

from hpctrain import backend, ops
from hpctrain.autograd import Spec, Tensor
from hpctrain.autograd.element import cast
from hpctrain.graph.capture import capture, capture_gradient
from hpctrain.graph.execute import Executor
from hpctrain.graph.native import available
from hpctrain.graph.passes import EXACT, FUSED, optimise
from hpctrain.graph.plan import make_plan
from hpctrain.graph.precision import narrow
from hpctrain.ops.dnnl_narrow import describe_narrow, lacking

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(bool(lacking()), reason=f"bfloat16 here: {describe_narrow()}"),
]
needs_llvm = pytest.mark.skipif(not available(), reason="needs llvmlite")
F4 = np.dtype(np.float32)
SIZE = 96  # products of such matrices pay


def weights(*shapes, seed=1):
    rng = np.random.default_rng(seed)
    return [Tensor((rng.standard_normal(s) / 8).astype(F4)) for s in shapes]


def layers(dtype=F4):
    """Return the gradient of two dense layers, and its leaves."""
    leaves = weights((SIZE, SIZE), (SIZE, SIZE))
    leaves = [Tensor(t.array.astype(dtype)) for t in leaves]
    for leaf in leaves:
        leaf.attach_grad()

    def function(x):
        hidden = ops.relu(ops.dense(x, leaves[0]))
        return (ops.sum(ops.square(ops.dense(hidden, leaves[1])), axis=1),)

    return capture_gradient(
        function, [Spec((SIZE, SIZE), np.dtype(dtype))], leaves, leaves
    ), leaves


def casts(graph):
    return [n for n in graph.nodes if n.row.name == "cast"]


def run(graph, leaves, names=EXACT):
    plan = make_plan(optimise(graph, names))
    outs = [
        np.empty(plan.graph.specs[v].shape, plan.graph.specs[v].dtype)
        for v in plan.graph.outputs
    ]
    rng = np.random.default_rng(7)
    inputs = [rng.standard_normal(graph.specs[v].shape).astype(F4) for v in graph.inputs]
    inputs[1:] = [np.array(1, F4) for _ in inputs[1:]]
    Executor(plan, [t.array for t in leaves], dict(enumerate(outs)))(inputs)
    return outs


def test_each_factor_is_rounded_once():
    graph, _ = layers()
    found = narrow(graph)

    products = [n for n in found.nodes if n.row.kind == "contract"]
    read = {v for n in products for v in n.inputs[:2]}
    assert len(products) == 5  # forward two, backward three: no gradient of x is wanted
    assert {found.specs[v].dtype.name for v in read} == {"bfloat16"}
    # x, two weights, the hidden layer, two cotangents; views are views of what was rounded.
    rounding = [n for n in casts(found) if found.specs[n.outputs[0]].dtype != F4]
    assert len(rounding) == 6
    assert all(n.inputs[0] not in read for n in rounding)


@needs_llvm
def test_the_gradient_of_relu_sees_the_rounded_result():
    """So nothing reads the result in float32 any more, and no kernel writes it."""
    graph, _ = layers()

    fused = optimise(narrow(graph), FUSED)

    (gradient,) = (n for n in fused.nodes if "relu_grad" in n.row.name)
    assert [fused.specs[v].dtype.name for v in gradient.inputs].count("bfloat16") == 1
    (made,) = (n for n in fused.nodes if "relu" in n.row.name and n is not gradient)
    readers = [n for n in fused.nodes if set(n.inputs) & set(made.outputs)]
    assert {fused.specs[v].dtype.name for v in made.outputs} == {"bfloat16"}
    assert len(readers) >= 3  # the second layer, the gradient of its weight, and this one


def test_outputs_keep_their_dtypes():
    graph, _ = layers()
    found = narrow(graph)

    assert [found.specs[v] for v in found.outputs] == [graph.specs[v] for v in graph.outputs]
    assert {found.specs[v].dtype for n in found.nodes if n.row.kind == "contract"
            for v in n.outputs} == {F4}  # fmt: skip


def test_values_are_near_those_of_float32():
    graph, leaves = layers()

    for exact, near in zip(run(graph, leaves), run(narrow(graph), leaves), strict=True):
        assert 0 < np.linalg.norm(near - exact) < 0.02 * np.linalg.norm(exact)


@needs_llvm
def test_fused_kernels_round_as_the_cast_does():
    """What makes a factor writes it rounded; parameters and inputs are cast by themselves."""
    graph, leaves = layers()
    found = narrow(graph)
    fused = optimise(found, FUSED)

    alone = [n for n in fused.nodes if n.row.name == "cast"]
    assert {v for n in alone for v in n.inputs} <= {*fused.inputs, *fused.leaves}
    assert any("relu+cast" in n.row.name for n in fused.nodes)
    for exact, other in zip(run(found, leaves), run(found, leaves, FUSED), strict=True):
        np.testing.assert_allclose(other, exact, rtol=0, atol=2e-3 * np.abs(exact).max())


def test_double_precision_and_small_products_are_left_alone():
    graph, _ = layers(np.float64)
    small = capture(lambda a, b: ops.matmul(a, b), [Spec((4, 4), F4)] * 2)

    assert narrow(graph).nodes == graph.nodes
    assert narrow(small).nodes == small.nodes


@needs_llvm
def test_compiled_rounding_is_to_the_nearest_even():
    bits = np.random.default_rng(3).integers(0, 2**32, 5000, np.uint32)
    ties = (bits & 0xFFFF0000) | 0x8000
    x = np.concatenate([bits, ties]).view(F4)
    x = x[np.abs(x) > np.finfo(F4).tiny]  # what is smaller may become 0; no NaN compares
    x = np.concatenate([x, np.array([0, -0.0, np.inf, -np.inf, 3.4e38, np.nan], F4)])

    got = compiled(lambda e: cast(e, "bfloat16"), x)

    want = x.astype(backend.bfloat16())
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.astype(F4), want.astype(F4))
    np.testing.assert_array_equal(np.signbit(got.astype(F4)), np.signbit(want.astype(F4)))


@needs_llvm
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool"])
@pytest.mark.parametrize("size", [1, 16, 37])
def test_bfloat16_is_converted_to_and_from_anything(dtype, size):
    x = np.random.default_rng(3).integers(-3, 4, size).astype(dtype)

    there = compiled(lambda e: cast(e, "bfloat16"), x)
    back = compiled(lambda e: cast(e, dtype), there)

    np.testing.assert_array_equal(there.astype(F4), x.astype(F4))
    np.testing.assert_array_equal(back, x)
