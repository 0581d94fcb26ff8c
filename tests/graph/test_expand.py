"""Operations taken apart: the same values from smaller ones."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor, apply, assign
from hpctrain.graph.capture import capture
from hpctrain.graph.execute import Executor
from hpctrain.graph.expand import expand
from hpctrain.graph.marks import marked
from hpctrain.graph.native import available
from hpctrain.graph.passes import FUSED, optimise, own_outputs, verify
from hpctrain.graph.plan import make_plan

pytestmark = pytest.mark.serial
F8 = np.dtype(np.float64)


def layer(x, gamma, beta):
    with marked(ctx_group="here"):
        y, mean, var = ops.batch_norm(x, gamma, beta, eps=1e-3)
    return ops.relu(y), mean, var


def gradients(x, gamma, beta, dy):
    y, mean, var = ops.batch_norm(x, gamma, beta, eps=1e-3)
    return y, *apply("batch_norm_grad", dy, x, gamma, mean, var, eps=1e-3)


def arrays():
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s) + 5 for s in ((4, 5, 6, 3), (3,), (3,))]


def run(graph, inputs):
    executor = Executor(make_plan(graph), [])
    specs = [graph.specs[v] for v in graph.outputs]
    outs = [np.full(s.shape, np.nan, s.dtype) for s in specs]
    executor(inputs, outs)
    return outs


def test_the_parts_give_the_same_values():
    graph = own_outputs(capture(layer, [Spec.of(a) for a in arrays()]))

    apart = verify(expand(graph))

    assert "batch_norm" not in {node.row.name for node in apart.nodes}
    for have, want in zip(run(apart, arrays()), run(graph, arrays()), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-12, atol=1e-12)


def test_the_parts_of_the_gradient_give_the_same_values():
    x, gamma, beta = arrays()
    dy = np.random.default_rng(1).standard_normal(x.shape)
    graph = capture(gradients, [Spec.of(a) for a in (x, gamma, beta, dy)])

    apart = verify(expand(graph))

    assert "batch_norm_grad" in {node.row.name for node in graph.nodes}
    assert "batch_norm_grad" not in {node.row.name for node in apart.nodes}
    given = [x, gamma, beta, dy]
    for have, want in zip(run(apart, given), run(own_outputs(graph), given), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-11, atol=1e-11)


def entropy_and_gradient(x, labels, dloss):
    loss, peak, total = apply("softmax_cross_entropy", x, labels)
    return loss, apply("softmax_cross_entropy_grad", x, labels, peak, total, dloss)


@pytest.mark.parametrize("scale", [1, 1000])
def test_the_parts_of_a_cross_entropy_give_the_same_values(scale):
    rng = np.random.default_rng(2)
    given = [rng.standard_normal((4, 5, 9)) * scale, rng.integers(9, size=(4, 5)),
             rng.standard_normal((4, 5))]  # fmt: skip
    graph = own_outputs(capture(entropy_and_gradient, [Spec.of(a) for a in given]))

    apart = verify(expand(graph))

    names = {node.row.name for node in apart.nodes}
    assert not names & {"softmax_cross_entropy", "softmax_cross_entropy_grad"}
    with np.errstate(over="ignore"):
        results = [run(g, given) for g in (apart, graph)]
    for have, want in zip(*results, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-11, atol=1e-11)


@pytest.mark.skipif(not available(), reason="no compiler is installed")
def test_a_fused_cross_entropy_sums_its_gradient_in_the_same_loop():
    rng = np.random.default_rng(3)
    given = [rng.standard_normal((30, 70)).astype(np.float32), rng.integers(70, size=30)]
    given.append(rng.standard_normal(30).astype(np.float32))
    graph = capture(
        lambda *ins: [y := entropy_and_gradient(*ins)[1], y.sum(0)], [Spec.of(a) for a in given]
    )
    exact = optimise(graph)

    fused = optimise(graph, FUSED)

    assert "sum" not in {node.row.name for node in fused.nodes}
    for have, want in zip(run(fused, given), run(exact, given), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)


def test_the_parts_have_the_marks_of_the_whole():
    graph = expand(capture(layer, [Spec.of(a) for a in arrays()]))

    marks = {node.mark("ctx_group") for node in graph.nodes if node.row.name != "relu"}
    assert marks == {"here"}


def test_state_is_assigned_what_the_parts_make():
    running = Tensor(np.zeros(3))

    def function(x, gamma, beta):
        y, mean, _ = ops.batch_norm(x, gamma, beta, eps=1e-3)
        assign(running, mean)
        return y

    graph = optimise(capture(function, [Spec.of(a) for a in arrays()], [running]), FUSED)
    executor = Executor(make_plan(graph), [running.array])
    executor(arrays(), [np.empty((4, 5, 6, 3))])

    np.testing.assert_allclose(running.asnumpy(), arrays()[0].mean(axis=(0, 1, 2)), 1e-12)


def test_a_graph_without_such_operations_stays_as_it_is():
    graph = capture(lambda x: ops.exp(x) + 1.0, [Spec((3,), F8)])

    assert expand(graph).nodes == graph.nodes


@pytest.mark.parametrize("kind", ["far", "first image apart", "one image"])
def test_statistics_in_one_pass_keep_their_digits(kind):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((1 if kind == "one image" else 32, 8, 8, 16)).astype(np.float32)
    x += 100
    if kind == "first image apart":
        x[0] = 0
    inputs = [x, np.ones(16, np.float32), np.zeros(16, np.float32)]
    graph = optimise(capture(layer, [Spec.of(a) for a in inputs]), FUSED)
    assert "batch_norm" not in {node.row.name for node in graph.nodes}

    _, mean, var = run(graph, inputs)

    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean((0, 1, 2)), rtol=1e-6)
    limit = 1e-4 if kind == "first image apart" else 2e-6  # 32 times as much
    np.testing.assert_allclose(var, exact.var((0, 1, 2)), rtol=limit)
