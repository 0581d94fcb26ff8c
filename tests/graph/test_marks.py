"""Where a node is to run is kept through capture, gradient and every pass."""

import numpy as np
import pytest

from hpctrain import AttrScope, ops, sym
from hpctrain.autograd import Spec, Tensor
from hpctrain.graph.capture import capture, capture_gradient
from hpctrain.graph.marks import GROUP, marked
from hpctrain.graph.passes import EXACT, PASSES, optimise
from hpctrain.symbol.evaluate import run
from hpctrain.symbol.node import in_order

pytestmark = pytest.mark.serial
F4 = np.dtype(np.float32)
SPEC = Spec((4, 8), F4)


def two_groups():
    """Return a graph of two layers on two groups, with gradients."""
    weights = [Tensor(np.full((8, 8), 0.1, F4)) for _ in range(2)]
    for weight in weights:
        weight.attach_grad()

    def function(x):
        for weight, group in zip(weights, ("one", "two"), strict=True):
            with AttrScope(ctx_group=group):
                x = ops.relu(ops.tanh(x @ weight).T.T) * 1.0
        return ops.sum(x, axis=1)

    return capture_gradient(function, [SPEC], weights, weights)


def groups(graph):
    return [(node.row.name, node.mark(GROUP)) for node in graph.nodes]


def test_nodes_of_a_scope_are_marked_and_so_are_their_gradients():
    found = groups(two_groups())

    for name in ("tanh", "relu", "relu_grad", "tanh_grad"):
        assert {group for row, group in found if row == name} == {"one", "two"}
    products = [group for row, group in found if row == "matmul"]
    assert products[:2] == ["one", "two"]
    assert products[2:] == sorted(products[2:], reverse=True)


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_keeps_the_groups(name):
    before = two_groups()
    home = {v: node.mark(GROUP) for node in before.nodes for v in node.outputs}

    after = PASSES[name](before)

    for node in after.nodes:
        for value in set(node.outputs).intersection(home):
            assert node.mark(GROUP) == home[value], node
    assert {group for _, group in groups(after)} >= {"one", "two"}


def test_a_copy_for_an_output_runs_beside_what_it_copies():
    def function(x):
        with marked(**{GROUP: "one"}):
            y = ops.exp(x)
        return y, y

    found = groups(optimise(capture(function, [SPEC]), EXACT))

    assert found == [("exp", "one"), ("identity", "one")]


def test_equal_nodes_of_two_groups_stay_apart():
    def function(x):
        with marked(**{GROUP: "one"}):
            y = ops.exp(x)
        with marked(**{GROUP: "two"}):
            return y, ops.exp(x)

    graph = PASSES["common_subexpressions"](capture(function, [SPEC]))

    assert groups(graph) == [("exp", "one"), ("exp", "two")]


def test_a_symbol_gives_its_nodes_their_group():
    with AttrScope(ctx_group="dev1"):
        x = sym.Variable("data")
        y = sym.exp(x)
    z = sym.tanh(y)

    def function(tensor):
        nodes = in_order(z.heads)
        return run(nodes, z.heads, {id(nodes[0]): tensor}, {})[0]

    found = groups(capture(function, [SPEC]))

    assert found == [("exp", "dev1"), ("tanh", None)]
