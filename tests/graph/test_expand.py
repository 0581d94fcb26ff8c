"""Operations taken apart: the same values from smaller ones."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor, apply, assign
from hpctrain.graph.capture import capture
from hpctrain.graph.execute import Executor
from hpctrain.graph.expand import expand
from hpctrain.graph.marks import marked
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
    outs = [np.full(graph.specs[v].shape, np.nan) for v in graph.outputs]
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
