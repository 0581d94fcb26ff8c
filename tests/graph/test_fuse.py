"""Fusion: what becomes one node, and that it computes the same in whatever graph it stands."""

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import random_program

from hpctrain import models, ops
from hpctrain.autograd import Spec, Tensor, assign
from hpctrain.errors import ShapeError
from hpctrain.graph import groups, tiles
from hpctrain.graph.capture import capture, capture_gradient
from hpctrain.graph.execute import Executor
from hpctrain.graph.fuse import fuse
from hpctrain.graph.fused import prepare
from hpctrain.graph.marks import marked
from hpctrain.graph.passes import EXACT, FUSED, optimise, verify
from hpctrain.graph.plan import make_plan

pytestmark = [pytest.mark.serial, pytest.mark.usefixtures("own_cache")]
F4, F8 = np.dtype(np.float32), np.dtype(np.float64)
HERE = importlib.util.find_spec("llvmlite") is not None
COMPILED = pytest.mark.skipif(not HERE, reason="no llvmlite")
WAYS = [pytest.param(True, marks=COMPILED), False]
AT_ONCE = EXACT[: EXACT.index("schedule")]


def fused(graph, compiled=True):
    return verify(fuse(optimise(graph, AT_ONCE), compiled))


def names(graph):
    return [node.row.name for node in graph.nodes]


def run(graph, leaves, inputs):
    """Run a graph as a plan whose arena and outputs are full of NaN."""
    leaves = [t.array.copy() for t in leaves]
    specs = [graph.specs[v] for v in graph.outputs]
    outs = [np.full(s.shape, np.nan if s.dtype.kind == "f" else 1, s.dtype) for s in specs]
    executor = Executor(make_plan(graph), leaves)
    for _ in range(2):  # the second run sees what the first has left
        executor.arena[...] = 0xFF
        executor(inputs, outs)
    return [*outs, *leaves]


def assert_same(function, arrays, leaves=(), wanted=None, compiled=True, limit=1e-12):
    """Compare a function with and without fusion, with its gradients if ``wanted``."""
    specs = [Spec.of(a) for a in arrays]
    if wanted is None:
        graph = capture(function, specs, leaves)
    else:
        graph = capture_gradient(function, specs, leaves, wanted)
        arrays = [*arrays, np.ones((), graph.specs[graph.inputs[-1]].dtype)]
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "_TILED", 1)  # so that small arrays, too, are cut into tiles
        patch.setattr(tiles, "_ELEMENTS", 64)
        after = fused(graph, compiled)
        want = run(optimise(graph, EXACT), leaves, arrays)
        got = run(after, leaves, arrays)
    for a, b in zip(want, got, strict=True):
        finite = a[np.isfinite(a)] if a.dtype.kind == "f" else a
        scale = np.abs(finite).max(initial=1)
        np.testing.assert_allclose(b, a, limit, limit * scale)
    return after


# What becomes one node


def test_a_chain_becomes_one_node():
    graph = fused(capture(lambda x: ops.exp(x) * 2.0 + x, [Spec((5, 7), F8)]))

    assert names(graph) == ["exp+multiply+add"]


def test_broadcasts_and_casts_are_read_inside():
    def function(x, row, column):
        wide = ops.broadcast_to(column, (5, 7))
        return ops.cast(x + row > wide, "float32") * 3.0

    specs = [Spec((5, 7), F4), Spec((7,), F4), Spec((5, 1), F4)]

    assert names(fused(capture(function, specs))) == ["add+greater+cast+multiply"]


def test_a_closing_sum_joins_and_the_element_stays_if_it_is_read():
    def function(x):
        y = ops.relu(x - 1.0)
        return ops.sum(y, 0), ops.mean(y, (0, 1)), ops.matmul(y, y)

    graph = fused(capture(function, [Spec((7, 7), F8)]))

    assert names(graph) == ["subtract+relu+sum+mean", "matmul"]
    assert len(graph.nodes[0].outputs) == 3


@COMPILED
def test_a_sum_joins_whoever_reads_what_it_sums():
    def function(x):
        y = ops.matmul(x, x)
        return ops.relu(y) * 2.0, ops.matmul(y, y), ops.sum(y, 0)

    graph = fused(capture(function, [Spec((7, 7), F8)]))

    assert names(graph) == ["matmul", "relu+multiply+sum", "matmul"]
    assert_same(function, [np.random.default_rng(0).standard_normal((7, 7))])


def test_the_sum_of_a_group_is_not_read_inside_of_it():
    def function(x):
        y = ops.exp(x)
        return y * 2.0 / ops.sum(y, -1, keepdims=True)

    graph = fused(capture(function, [Spec((5, 7), F8)]))

    assert names(graph) == ["exp+multiply+sum", "divide"]


def test_no_cycle_arises_through_a_node_outside():
    def function(x):
        y = ops.exp(x) + 1.0
        return y * ops.matmul(y, y)

    graph = fused(capture(function, [Spec((7, 7), F8)]))

    assert names(graph) == ["exp+add", "matmul", "multiply"]


def test_groups_meet_where_their_last_input_is():
    def function(x, y):
        a = ops.exp(x) + 1.0
        b = ops.matmul(y, y)
        return ops.tanh(b) * a

    graph = fused(capture(function, [Spec((7, 7), F8)] * 2))

    assert names(graph) == ["matmul", "exp+add+tanh+multiply"]


def test_what_the_backward_part_needs_late_is_not_made_early():
    def function(x):
        y = ops.exp(x)
        z = ops.matmul(ops.matmul(y, y), y)
        return z * (y * 3.0 + 1.0) + y

    graph = fused(capture(function, [Spec((50, 50), F8)]))

    assert names(graph) == ["exp", "matmul", "matmul", "multiply+add+multiply+add"]


def test_one_operation_that_numpy_takes_several_steps_for_is_compiled():
    graph = fused(capture(lambda x: ops.gelu(ops.matmul(x, x)), [Spec((7, 7), F8)]))
    plain = fused(capture(lambda x: ops.exp(ops.matmul(x, x)), [Spec((7, 7), F8)]))

    assert "formula" in dict(graph.nodes[1].attrs)
    assert "formula" not in dict(plain.nodes[1].attrs)


@COMPILED
@pytest.mark.parametrize("shape", [(3000, 3), (90, 5, 20), (1, 5), (700,)])
def test_a_sum_of_rows_and_a_rectifier_are_compiled_though_alone(shape):
    x = np.random.default_rng(4).standard_normal(shape).astype(F4)
    x[0], x.flat[-1] = np.nan if x.ndim > 2 else 0, -0.0

    def function(x, y):
        return ops.sum(x, tuple(range(max(1, x.ndim - 1)))), ops.relu(y)

    after = assert_same(function, [x, x], limit=2e-6)

    assert sorted(names(after)) == ["relu", "sum"]
    assert all("formula" in dict(node.attrs) for node in after.nodes)
    across = fused(capture(lambda x: ops.sum(x, 1), [Spec((8, 9), F4)]))
    assert "formula" not in dict(across.nodes[0].attrs)


def test_views_that_show_an_array_as_it_is_go():
    graph = fused(capture(lambda x: ops.reshape(x, (5, 7)).T.T + 1.0, [Spec((5, 7), F8)]))

    assert names(graph) == ["add"]


def test_nodes_for_different_devices_stay_apart():
    def function(x):
        with marked(ctx_group="a"):
            y = ops.exp(x) + 1.0
        with marked(ctx_group="b"):
            return y * 2.0 - 1.0

    graph = fused(capture(function, [Spec((5,), F8)]))

    assert names(graph) == ["exp+add", "multiply+subtract"]
    assert [dict(n.marks) for n in graph.nodes] == [{"ctx_group": "a"}, {"ctx_group": "b"}]


def test_whole_numbers_that_kernels_lack_are_left_alone():
    graph = fused(capture(lambda x: x + x * x, [Spec((5,), np.dtype(np.uint8))]))

    assert names(graph) == ["multiply", "add"]


def test_without_a_compiler_only_large_groups_arise():
    def function(x):
        return ops.sum(ops.exp(x) + 1.0)

    small = fused(capture(function, [Spec((5, 7), F8)]), compiled=False)
    large = fused(capture(function, [Spec((500, 700), F8)]), compiled=False)

    assert names(small) == ["exp", "add", "sum"]
    assert names(large) == ["exp+add", "sum"]


# What it computes


@pytest.mark.parametrize("compiled", WAYS)
@pytest.mark.parametrize("seed", range(15))
def test_random_programs_are_the_same_forward_and_backward(seed, compiled):
    function, leaves, inputs = random_program(seed, 30)
    for leaf in leaves:
        leaf.attach_grad()

    assert_same(function, [t.array for t in inputs], leaves, leaves, compiled, 1e-10)


SHAPES = [(6, 4, 33), (4, 33), (33,), (6, 1, 33), (1, 4, 1), (6, 4, 1), (), (1, 1, 1)]
UNARY = [
    ops.exp, ops.tanh, ops.sigmoid, ops.relu, ops.gelu, ops.silu, ops.square, ops.negative,
    ops.softplus, ops.erf, ops.abs, ops.sign, lambda x: ops.leaky_relu(x, 0.3),
    lambda x: ops.clip(x, -0.5, 0.5), lambda x: ops.log1p(ops.abs(x)),
    lambda x: ops.rsqrt(ops.square(x) + 1.0), lambda x: ops.gelu(x, False),
    lambda x: ops.cast(x > 0.1, x.dtype.name), lambda x: ops.reshape(x, x.shape),
    lambda x: ops.expm1(ops.minimum(x, 1.0)), ops.identity, ops.ones_like,
]  # fmt: skip
BINARY = [
    ops.add, ops.subtract, ops.multiply, ops.maximum, ops.minimum,
    lambda a, b: a / (ops.square(b) + 1.0), lambda a, b: ops.where(a < b, a, b * 2.0),
]  # fmt: skip
AXES = [0, -1, None, (0, 1)]


def sums(x, axis):
    if axis is None or x.ndim == 0:
        return ops.mean(x)
    return ops.sum(x, axis if isinstance(axis, int) or x.ndim > 1 else 0, keepdims=True)


@st.composite
def trees(draw):
    """Draw (function, shapes): a program of element-wise operations, broadcasts and sums."""
    shapes = [SHAPES[0], *draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))]
    place = st.integers(0, 99)
    step = st.one_of(
        st.tuples(st.just("unary"), st.sampled_from(range(len(UNARY))), place, place),
        st.tuples(st.just("binary"), st.sampled_from(range(len(BINARY))), place, place),
        st.tuples(st.just("sum"), st.sampled_from(range(len(AXES))), place, place),
        st.tuples(st.just("matmul"), st.just(0), place, place),
    )
    script = draw(st.lists(step, min_size=2, max_size=14))

    def function(*inputs):
        pool = list(inputs)
        for kind, choice, i, j in script:
            a, b = pool[i % len(pool)], pool[j % len(pool)]
            if kind == "unary":
                pool.append(UNARY[choice](a))
            elif kind == "binary":
                pool.append(BINARY[choice](a, b))
            elif kind == "sum":
                pool.append(sums(a, AXES[choice]))
            elif a.ndim > 1:
                pool.append(ops.tanh(ops.matmul(a, a, transpose_b=True)[..., :1]))
        total = pool[0] * 0.0
        for x in pool[len(inputs) :]:
            total = total + ops.tanh(x)
        return (ops.sum(total), *pool[-2:])

    return function, shapes


@pytest.mark.slow
@pytest.mark.parametrize("compiled", WAYS)
@given(tree=trees(), seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_random_trees_are_the_same_forward_and_backward(compiled, tree, seed):
    function, shapes = tree
    rng = np.random.default_rng(seed)
    leaves = [Tensor(rng.standard_normal(s), dtype=np.float64) for s in shapes]
    for leaf in leaves:
        leaf.attach_grad()

    assert_same(lambda: function(*leaves), [], leaves, leaves, compiled, 1e-9)


@COMPILED
def test_plain_arithmetic_has_the_same_bits():
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((9, 33)).astype(F4) for _ in range(3)]

    def function(x, y, z):
        return ops.relu(x * y + z) / (y * y + 1.0)

    graph = optimise(capture(function, [Spec.of(a) for a in arrays]), EXACT)
    (want,), (got,) = run(graph, [], arrays), run(fused(graph), [], arrays)

    np.testing.assert_array_equal(got, want)


@COMPILED
def test_nan_and_infinity_pass_through():
    x = np.array([np.nan, np.inf, -np.inf, 0, 1] * 7, F8)

    def function(x):
        return ops.tanh(x) + ops.relu(x) * 2.0, ops.sigmoid(x) - 1.0, ops.exp(x) * x

    assert_same(function, [x])


@COMPILED
@pytest.mark.parametrize("dtype", [F4, F8], ids=str)
@pytest.mark.parametrize("shape", [(3000, 3), (3000, 16), (2, 3000), (1, 5), (70_000,)])
def test_sums_over_rows_and_columns(shape, dtype):
    x = np.random.default_rng(2).standard_normal(shape).astype(dtype)

    def function(x):
        y = x * x + x
        return (
            y,
            *(ops.sum(y, a) for a in range(x.ndim)),
            ops.mean(y),
            ops.sum_to(y, (1,) * x.ndim),
        )

    assert_same(function, [x], limit=2e-6 if dtype == F4 else 1e-12)


@pytest.mark.parametrize("compiled", WAYS)
def test_large_groups_run_over_tiles_and_rows(compiled):
    rng = np.random.default_rng(3)
    x, row = rng.standard_normal((333, 1001)), rng.standard_normal(1001)
    column = rng.standard_normal((333, 1))

    def function(x, row, column):
        y = ops.relu(x + row) * column
        return y, ops.where(y > row, y, ops.broadcast_to(column, y.shape))

    assert_same(function, [x, row, column], compiled=compiled)


@COMPILED
def test_views_by_any_strides_are_read_inside():
    x = np.random.default_rng(4).standard_normal((6, 8))

    def function(x):
        return ops.exp(x[1:4, ::2].T) * 2.0 + x[5, 3:6] - x[:4, 2:5]

    graph = assert_same(function, [x])
    assert names(graph) == ["slice", "exp+multiply+add+subtract"]  # one lies without gaps


@COMPILED
def test_state_is_assigned_what_a_group_makes():
    mean, count = Tensor(np.ones(5)), Tensor(np.zeros(5))

    def function(x):
        assign(mean, mean * 0.9 + x * 0.1)
        assign(count, count + 1.0)
        return mean * 2.0 - count

    assert_same(function, [np.arange(5.0)], [mean, count])


@pytest.mark.parametrize("shape", [(1000, 3), (7, 5, 11), (1, 900)])
def test_tiles_give_the_bits_of_the_members(shape):
    rng = np.random.default_rng(9)
    x, y = rng.standard_normal(shape), rng.standard_normal(shape[-1:])

    def function(x, y):
        a = ops.gelu(x) * y + 1.0
        return ops.where(a > y, a, x), ops.leaky_relu(a - x, 0.1)

    assert_same(function, [x, y], compiled=False, limit=0)


@COMPILED
def test_results_are_written_over_inputs():
    def function(x):
        y = ops.matmul(x, x)
        return ops.matmul(ops.exp(y) * y + 1.0, x)

    graph = fused(capture(function, [Spec((64, 64), F8)]))
    plan = make_plan(graph)

    assert plan.arena_bytes == 64 * 64 * 8
    assert_same(function, [np.random.default_rng(5).standard_normal((64, 64)) / 9])


@COMPILED
def test_a_group_that_reads_a_row_of_an_input_does_not_write_over_it():
    def function(x):
        y = ops.matmul(x, x)
        return ops.matmul(y * 2.0 + y[0], x)

    assert_same(function, [np.random.default_rng(6).standard_normal((64, 64)) / 9])


# Models


SMALL = {
    "mlp": (models.MLP, {"inputs": 9, "hidden": (7, 5), "classes": 4}, (3, 9)),
    "lenet": (models.LeNet, {"size": 20, "layout": "NCHW"}, (2, 1, 20, 20)),
    "resnet": (models.ResNet, {"depth": 8}, (3, 3, 8, 8)),
    "lstm": (models.LSTMModel, {"vocab": 11, "width": 6}, (4, 3)),
    "gpt": (models.GPT, {"vocab": 11, "width": 8, "heads": 2, "depth": 2, "steps": 6}, (3, 5)),
    "cosmo": (
        models.Cosmo,
        {"channels": (2, 4, 5, 6), "size": 8, "hidden": 7},
        (2, 2, 8, 8, 8),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("compiled", WAYS)
@pytest.mark.parametrize("name", SMALL)
def test_models_are_the_same_forward_and_backward(name, compiled):
    make, args, shape = SMALL[name]
    net = make(**args)
    net.initialize()
    net.cast("float64")
    rng = np.random.default_rng(7)
    whole = name in ("lstm", "gpt")
    x = rng.integers(0, 11, shape) if whole else rng.standard_normal(shape)
    parameters = list(net.collect_params().values())
    leaves = [p.data() for p in parameters]
    wanted = [p.data() for p in parameters if p.differentiable]

    assert_same(lambda x: ops.sum(ops.tanh(net(x))), [x], leaves, wanted, compiled, 1e-9)


# How it is run


@COMPILED
def test_an_error_names_the_step_and_the_members():
    graph = optimise(capture(lambda x: ops.exp(x) * x, [Spec((4,), F8)]), FUSED)
    executor = Executor(make_plan(graph), [])

    with pytest.raises(ShapeError, match=r"plan: got float64\[5\]"):
        executor([np.zeros(5)], [np.zeros(4)])
    executor.feed([np.zeros(4)], [np.zeros(4)])
    executor._values.clear()
    with pytest.raises(KeyError) as caught:
        executor.run()

    assert "in step 0 of the plan: exp+multiply(float64[4])" in caught.value.__notes__[0]


def test_a_fused_node_is_only_for_the_shapes_it_was_made_for():
    (node,) = fused(capture(lambda x: ops.exp(x) * x, [Spec((4,), F8)])).nodes

    with pytest.raises(ShapeError, match=r"was fused for float64\[4\]"):
        node.row.infer([Spec((5,), F8)])


@COMPILED
def test_preparing_says_how_many_kernels_were_made(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def function(x):
        y = ops.matmul(ops.exp(x * 3.25) - 1.0, x)
        return ops.exp(y * 3.25) - 1.0

    found = prepare(fused(capture(function, [Spec((6, 6), F8)])))

    assert (found.kernels, found.compiled) == (1, 1)
    assert found.seconds > 0
    assert len(list(tmp_path.rglob("*"))) == 3  # hpctrain/kernels/<digest>


@COMPILED
def test_scalars_and_arrays_of_any_strides_are_taken():
    (node,) = fused(capture(lambda x, s: x * s + s, [Spec((3, 4), F8), Spec((), F8)])).nodes
    x, out = np.arange(12.0).reshape(4, 3).T, np.empty((3, 4))

    node.row.kernel(
        np, [np.float64(2.0) if s.ndim == 0 else x for s in _specs(node)], [out], []
    )

    np.testing.assert_array_equal(out, x * 2.0 + 2.0)


def _specs(node):
    return [a.spec for a in node.row.kernel.__self__.work.inputs]
