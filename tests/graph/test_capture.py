"""Capture writes down what a function does, and refuses what a graph cannot know."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor, assign
from hpctrain.errors import ShapeError
from hpctrain.graph.capture import capture, capture_gradient

pytestmark = pytest.mark.serial
F8 = np.dtype(np.float64)


def test_the_text_shows_inputs_leaves_nodes_and_outputs():
    weight = Tensor(np.ones((2, 3)), dtype=np.float64)

    graph = capture(lambda x: ops.relu(x @ weight), [Spec((4, 2), F8)], [weight])

    lines = graph.text().splitlines()
    assert lines[0].startswith("leaf") or lines[0].startswith("input")
    assert "%3 = relu(%2): float64[4,3]" in lines
    assert lines[-1] == "output %3"


def test_other_tensors_become_constants():
    other = Tensor(np.arange(3.0), dtype=np.float64)

    graph = capture(lambda x: x + other, [Spec((3,), F8)])

    (value,) = graph.constants.values()
    np.testing.assert_array_equal(value, [0, 1, 2])


def test_elements_are_not_known():
    with pytest.raises(ShapeError, match="only shape and dtype are known"):
        capture(lambda x: x * float(x.sum()), [Spec((3,), F8)])


def test_a_tensor_of_another_capture_is_refused():
    kept = []
    capture(lambda x: kept.append(x) or x + 1.0, [Spec((3,), F8)])

    with pytest.raises(ShapeError, match="captured for another graph"):
        capture(lambda x: x + kept[0], [Spec((3,), F8)])


def test_a_read_after_an_assignment_sees_the_new_value():
    state = Tensor(np.zeros(3), dtype=np.float64)

    def function(x):
        assign(state, x + state)
        return state * 2.0

    graph = capture(function, [state.spec], [state])

    assert len(graph.assigns) == 1
    leaf, source = graph.assigns[0]
    assert leaf == graph.leaves[0]
    assert source in graph.nodes[-1].inputs


def test_assigning_twice_keeps_the_last():
    state = Tensor(np.zeros(3), dtype=np.float64)

    def function(x):
        assign(state, state + x)
        assign(state, state + x)
        return x

    graph = capture(function, [state.spec], [state])

    assert len(graph.assigns) == 1
    assert graph.assigns[0][1] == graph.nodes[-1].outputs[0]


def test_only_leaves_can_be_assigned():
    state = Tensor(np.zeros(3), dtype=np.float64)

    with pytest.raises(ShapeError, match="no parameter of the block"):
        capture(lambda x: assign(state, x) or x, [state.spec])


def test_a_leaf_that_the_head_ignores_gets_a_gradient_of_zeros():
    used, idle = (Tensor(np.ones(3), dtype=np.float64) for _ in range(2))
    used.attach_grad()
    idle.attach_grad()

    graph = capture_gradient(
        lambda x: ops.sum(x * used), [used.spec], [used, idle], [used, idle]
    )

    made = {v: n.row.name for n in graph.nodes for v in n.outputs}
    assert made[graph.outputs[2]] == "zeros_like"


def test_a_gradient_rule_sees_state_as_it_was_when_it_was_read():
    state = Tensor(np.ones(3), dtype=np.float64)
    weight = Tensor(np.ones(3), dtype=np.float64)
    weight.attach_grad()

    def function(x):
        y = x * weight * state
        assign(state, state + 1.0)
        return ops.sum(y * state)

    graph = capture_gradient(function, [state.spec], [weight, state], [weight])

    new = graph.assigns[0][1]
    products = [n.inputs for n in graph.nodes if n.row.name == "multiply"]
    assert any(graph.leaves[1] in inputs for inputs in products[3:])
    assert any(new in inputs for inputs in products[3:])
