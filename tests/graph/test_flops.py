"""Floating-point operations, against counts by hand and against published ones."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor
from hpctrain.cli.subject import of_model
from hpctrain.graph.capture import capture, capture_gradient
from hpctrain.graph.flops import flops, node_flops
from hpctrain.graph.passes import EXACT, optimise

pytestmark = pytest.mark.serial
F4 = np.dtype(np.float32)


def count(function, *shapes):
    """Return the FLOPs of a function of tensors of ``shapes``, by primitive."""
    graph = capture(lambda *given: function(*given), [Spec(s, F4) for s in shapes])
    found = {}
    for node in graph.nodes:
        found[node.row.name] = found.get(node.row.name, 0) + node_flops(graph, node)
    return found


def test_products_of_matrices():
    assert count(ops.matmul, (5, 3, 4), (5, 4, 7))["matmul"] == 2 * 5 * 3 * 4 * 7
    assert count(lambda x, w: ops.dense(x, w), (6, 8), (3, 8))["dense"] == 2 * 6 * 8 * 3


def test_a_transposed_factor_changes_nothing():
    found = count(lambda a, b: ops.matmul(a, b, transpose_a=True), (4, 3), (4, 7))

    assert found["matmul"] == 2 * 3 * 4 * 7


def test_convolutions_and_groups():
    found = count(lambda x, w: ops.conv(x, w, padding=1, groups=2), (2, 9, 9, 8), (6, 3, 3, 4))

    assert found["conv"] == 2 * (2 * 9 * 9 * 6) * (3 * 3 * 4)


def test_attention_sees_half_of_the_keys_if_causal():
    shape = (2, 3, 16, 8)

    whole = count(lambda q, k, v: ops.attention(q, k, v)[0], shape, shape, shape)
    causal = count(lambda q, k, v: ops.attention(q, k, v, causal=True)[0], shape, shape, shape)

    assert whole["attention"] == 2 * 2 * (2 * 3 * 16 * 16 * 8)
    assert causal["attention"] == whole["attention"] // 2


def test_what_moves_costs_nothing_and_the_rest_one_for_each_element():
    found = count(lambda x: ops.sum(ops.exp(x.T.reshape((3, 8))) + x[:3, :1]), (4, 6))

    assert found == {
        "transpose": 0, "reshape": 0, "slice": 0, "exp": 24, "add": 24, "sum": 24,
    }  # fmt: skip


def test_pooling_looks_at_each_window_once():
    found = count(lambda x: ops.max_pool(x, (2, 2))[0], (1, 8, 8, 3))

    assert found["max_pool"] == (4 * 4 * 3) * 4


def test_the_gradient_of_a_layer_costs_twice_the_layer():
    weight = Tensor(np.ones((7, 5), F4))
    weight.attach_grad()
    image = Tensor(np.ones((6, 3, 3, 4), F4))
    image.attach_grad()

    def function(x):
        y = ops.conv(ops.tanh(x * 1.5 + image[0, 0, 0]), image, padding=1)
        return ops.sum(ops.dense(ops.tanh(ops.reshape(y, (-1, 5))), weight), 1)

    leaves = [weight, image]
    specs = [Spec((10, 4, 4, 4), F4)]
    graph = optimise(capture_gradient(function, specs, leaves, leaves), EXACT)
    named = {}
    for node in graph.nodes:
        named.setdefault(node.row.name, []).append(node_flops(graph, node))

    (forward,) = named["conv"]
    assert named["conv_grad_data"] == named["conv_grad_weight"] == [forward]
    assert named["matmul"] == named["dense"] * 2


def test_a_residual_network_costs_what_its_paper_says():
    """He et al. (2016), table 6: ResNet-20 has 0.27 M parameters; it takes 41 M products."""
    work = of_model("resnet20")

    products = flops(optimise(work.graph(training=False), EXACT)) / 2 / work.batch

    assert products == pytest.approx(41e6, rel=0.02)


def test_training_costs_about_three_times_as_much_as_inference():
    for name in ("mlp", "resnet20", "gpt", "lstm", "cosmo"):
        work = of_model(name)

        training, inference = (flops(optimise(work.graph(t), EXACT)) for t in (True, False))

        assert 2.4 < training / inference < 3.3, name
