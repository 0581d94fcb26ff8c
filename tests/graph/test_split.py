"""What passes from the forward to the backward part of a graph."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor
from hpctrain.graph.capture import capture_gradient
from hpctrain.graph.split import split

pytestmark = pytest.mark.serial
F4 = np.dtype(np.float32)


def parts(function, shape, weight):
    weight.attach_grad()
    graph = capture_gradient(function, [Spec(shape, F4)], [weight], [weight])
    return (graph, *split(graph, 1, 1))


def test_what_a_view_shows_is_handed_over_and_seen_again():
    def function(x):
        y = ops.exp(x * weight)
        return ops.sum(ops.square(y.T), 1)

    weight = Tensor(np.ones((4, 6), F4))
    graph, front, back, saved = parts(function, (4, 6), weight)

    made = {v: node for node in graph.nodes for v in node.outputs}
    assert not [v for v in saved if v in made and made[v].row.view is not None]
    assert "transpose" in [node.row.name for node in front.nodes]
    assert "transpose" in [node.row.name for node in back.nodes]


def test_each_part_computes_its_own():
    weight = Tensor(np.ones((4, 6), F4))
    graph, front, back, saved = parts(
        lambda x: ops.sum(ops.tanh(x * weight), 1), (4, 6), weight
    )

    assert [node.row.name for node in front.nodes] == ["multiply", "tanh", "sum"]
    assert "tanh_grad" in [node.row.name for node in back.nodes]
    (tanh,) = (node for node in graph.nodes if node.row.name == "tanh")
    assert {*saved} == {tanh.outputs[0], graph.inputs[0]}
