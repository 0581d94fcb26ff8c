"""Passes keep what a graph computes, and the verifier knows a bad graph."""

from dataclasses import replace

import numpy as np
import pytest
from programs import random_program

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor, apply, assign, primitive
from hpctrain.errors import ShapeError
from hpctrain.graph.capture import capture, capture_gradient
from hpctrain.graph.execute import Executor
from hpctrain.graph.ir import Node
from hpctrain.graph.passes import (
    EXACT,
    PASSES,
    common_subexpressions,
    dead_code,
    optimise,
    own_outputs,
    schedule,
    verify,
)
from hpctrain.graph.plan import make_plan
from hpctrain.ops.sync_norm import ALONE

pytestmark = pytest.mark.serial
F8 = np.dtype(np.float64)


def evaluate(graph, leaves, inputs):
    """Run a graph without planning its memory: every node at once, in order."""
    values = dict(graph.constants)
    values.update(zip(graph.leaves, [t.array for t in leaves], strict=True))
    values.update(zip(graph.inputs, inputs, strict=True))
    for node in graph.nodes:
        specs = [graph.specs[v] for v in node.outputs]
        outs = [np.full(s.shape, np.nan if s.dtype.kind == "f" else 0, s.dtype) for s in specs]
        ins = [values[v] for v in node.inputs]
        attrs = dict(node.attrs)
        scratch = (
            node.row.scratch([Spec.of(a) for a in ins], **attrs) if node.row.scratch else []
        )
        node.row.kernel(np, ins, outs, [np.empty(s.shape, s.dtype) for s in scratch], **attrs)
        values.update(zip(node.outputs, outs, strict=True))
    return [values[v] for v in graph.outputs]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("seed", range(10))
def test_a_pass_keeps_the_numbers(name, seed):
    function, leaves, inputs = random_program(seed)
    for leaf in leaves:
        leaf.attach_grad()
    graph = capture_gradient(function, [t.spec for t in inputs], leaves, leaves)
    arrays = [*(t.array for t in inputs), np.ones(())]

    changed = verify(PASSES[name](graph))

    for a, b in zip(
        evaluate(graph, leaves, arrays), evaluate(changed, leaves, arrays), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_dead_code_goes():
    def function(x):
        ops.exp(x)
        return x + x

    graph = dead_code(capture(function, [Spec((3,), F8)]))

    assert [n.row.name for n in graph.nodes] == ["add"]


def test_equal_expressions_are_computed_once():
    def function(x):
        return ops.exp(x) * 2.0 + ops.exp(x) * 2.0

    graph = dead_code(common_subexpressions(capture(function, [Spec((3,), F8)])))

    assert [n.row.name for n in graph.nodes] == ["exp", "multiply", "add"]
    assert len(graph.constants) == 1


def test_different_constants_stay_apart():
    def function(x):
        return x * 2.0 + x * 3.0

    graph = common_subexpressions(capture(function, [Spec((3,), F8)]))

    assert len(graph.constants) == 2


def test_schedule_moves_a_large_result_to_its_user():
    def function(x):
        spread = ops.broadcast_to(ops.sum(x), (1000,))
        y = ops.exp(ops.exp(x))
        return ops.sum(spread) + ops.sum(y)

    graph = schedule(capture(function, [Spec((3,), F8)]))

    names = [n.row.name for n in graph.nodes]
    assert names.index("broadcast_to") > names.index("exp")


def test_schedule_leaves_what_is_not_pure_in_its_order():
    """Large or small, the first normalisation would wait for its user, behind the second."""

    def function(x, gamma):
        attrs = {"combine": ALONE}
        first = apply("sync_batch_norm", x, gamma, gamma, eps=0.25, **attrs)
        second = apply("sync_batch_norm", ops.exp(x), gamma, gamma, eps=0.5, **attrs)[0]
        return sum(first, ops.sum(ops.exp(second)))

    graph = schedule(capture(function, [Spec((1000, 3), F8), Spec((3,), F8)]))

    found = [dict(n.attrs)["eps"] for n in graph.nodes if n.row.name == "sync_batch_norm"]
    assert found == [0.25, 0.5]


def test_every_output_gets_a_writer_of_its_own():
    def function(x, y):
        z = x + y
        return z, z, x, ops.reshape(z, (6,))

    graph = own_outputs(capture(function, [Spec((2, 3), F8)] * 2))

    assert len(set(graph.outputs)) == 4
    made = {v: n.row.name for n in graph.nodes for v in n.outputs}
    assert [made[v] for v in graph.outputs] == ["add", "identity", "identity", "identity"]


def test_the_verifier_names_a_value_that_is_read_too_early():
    graph = capture(lambda x: ops.exp(ops.exp(x)), [Spec((3,), F8)])
    bad = replace(graph, nodes=graph.nodes[::-1])

    with pytest.raises(ShapeError, match=r"graph node 0 .* reads %1, which is not defined"):
        verify(bad)


def test_the_verifier_compares_shapes_with_the_rule():
    graph = capture(lambda x: ops.exp(x), [Spec((3,), F8)])
    bad = replace(graph, specs={**graph.specs, 1: Spec((4,), F8)})

    with pytest.raises(ShapeError, match="its rule gives"):
        verify(bad)


def test_the_verifier_wants_each_value_defined_once():
    graph = capture(lambda x: ops.exp(x), [Spec((3,), F8)])
    twice = (*graph.nodes, Node(primitive("exp"), (0,), (1,)))

    with pytest.raises(ShapeError, match="defines %1 a second time"):
        verify(replace(graph, nodes=twice))


def test_state_can_be_exchanged():
    a, b = (Tensor(np.full(3, v, np.float32)) for v in (0, 1))

    def function(x):
        old = a + 0.0
        assign(a, b + 0.0)
        assign(b, old)
        return x + a

    graph = optimise(capture(function, [a.spec], [a, b]))
    run = Executor(make_plan(graph), [a.array, b.array])
    out = np.empty(3, np.float32)
    run([np.zeros(3, np.float32)], [out])

    np.testing.assert_array_equal(out, 1.0)
    np.testing.assert_array_equal(a.array, 1.0)
    np.testing.assert_array_equal(b.array, 0.0)
