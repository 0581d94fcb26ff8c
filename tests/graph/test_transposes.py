"""Layout: transposes go to the edges, and every bit stays."""

import numpy as np
import pytest
from programs import channels_first_program, run_plan

from hpctrain import nn, ops
from hpctrain.autograd import Spec, Tensor, backward, record
from hpctrain.graph.capture import capture, capture_gradient
from hpctrain.graph.passes import EXACT, optimise, verify
from hpctrain.graph.regions import regions
from hpctrain.graph.transposes import layout, transposed_bytes

pytestmark = pytest.mark.serial
F4 = np.dtype(np.float32)
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
IMAGES = Spec((2, 8, 4, 4), F4)


def transposes(graph):
    return sum(node.row.name == "transpose" for node in graph.nodes)


def eager(function, leaves, inputs):
    """Return head, other results and the gradients of ``leaves``."""
    for leaf in leaves:
        leaf.attach_grad()
    with record():
        outputs = function(*inputs)
    backward(outputs[0])
    return [*(t.asnumpy() for t in outputs), *(t.grad.asnumpy() for t in leaves)]


@pytest.mark.parametrize("seed", range(60))
def test_values_and_gradients_keep_their_bits(seed):
    function, leaves, inputs = channels_first_program(seed)

    expected = eager(function, leaves, inputs)
    graph = capture_gradient(function, [t.spec for t in inputs], leaves, leaves)
    arrays = [*(t.array for t in inputs), np.ones((), inputs[0].dtype)]
    found = run_plan(optimise(graph, EXACT), [t.array for t in leaves], arrays)

    for a, b in zip(expected, found, strict=True):
        assert a.tobytes() == b.tobytes()


def test_elementwise_operations_between_two_transposes_take_them_away():
    def function(x):
        y = ops.transpose(ops.exp(x), TO_FIRST)
        y = ops.relu(ops.tanh(y) + 1.0)
        return ops.exp(ops.transpose(y, TO_LAST))

    graph = verify(layout(capture(function, [Spec((2, 4, 4, 8), F4)])))

    assert transposes(graph) == 0


def test_vectors_that_are_broadcast_turn_too():
    bias = Tensor(np.arange(8, dtype=F4))

    def function(x):
        y = ops.transpose(ops.exp(x), TO_FIRST) + ops.reshape(bias, (8, 1, 1))
        return ops.exp(ops.transpose(y, TO_LAST))

    graph = optimise(capture(function, [Spec((2, 4, 4, 8), F4)], [bias]), EXACT)

    assert transposes(graph) == 0
    (add,) = [node for node in graph.nodes if node.row.name == "add"]
    assert graph.specs[add.inputs[1]].shape == (1, 1, 1, 8)


def test_what_is_read_in_its_own_order_by_most_is_not_turned():
    def function(x):
        y = ops.tanh(ops.exp(x))
        z = ops.relu(y)
        return ops.exp(ops.transpose(y, TO_LAST)), ops.sum(y, 1), ops.max(z, 1), z

    graph = capture(function, [IMAGES])

    assert layout(graph) is graph


def test_the_cheaper_side_is_transposed():
    """One large image goes in, one small comes out: it is turned at the small end."""

    def function(x):
        y = ops.transpose(ops.exp(x), TO_FIRST)
        return ops.concat([ops.tanh(y), ops.sigmoid(y)], 1)[:, :1]

    before = capture(function, [Spec((2, 4, 4, 8), F4)])
    after = optimise(before, EXACT)

    assert transposed_bytes(after) < transposed_bytes(before)


def test_a_product_still_reads_a_contiguous_array():
    """Products round by layout, so what they read is put back as it was."""

    def function(x):
        y = ops.tanh(ops.transpose(ops.exp(x), TO_FIRST))
        z = ops.exp(ops.transpose(y, TO_LAST)) + ops.exp(ops.transpose(ops.relu(y), TO_LAST))
        return z, ops.matmul(y, y)

    graph = verify(layout(capture(function, [Spec((2, 4, 4, 8), F4)])))

    made = {v: node.row.name for node in graph.nodes for v in node.outputs}
    product = next(node for node in graph.nodes if node.row.name == "matmul")
    assert {made[v] for v in product.inputs} <= {"identity", "tanh"}


def test_regions_end_at_operations_that_care():
    def function(x):
        return ops.relu(ops.sum(ops.tanh(ops.exp(x)) * 2.0, 1))

    found = regions(capture(function, [IMAGES]))

    assert [len(region.places) for region in found] == [3, 1]


class Block(nn.HybridBlock):
    """A residual block with channels first, as users of MXNet write it."""

    def __init__(self, inner, channels, strides):
        super().__init__()
        with self.name_scope():
            self.conv1 = nn.Conv2D(channels, 3, strides, 1, in_channels=inner, use_bias=False)
            self.norm1 = nn.BatchNorm(in_channels=channels)
            self.conv2 = nn.Conv2D(channels, 3, 1, 1, in_channels=channels)
            self.norm2 = nn.BatchNorm(in_channels=channels)
            self.short = nn.Conv2D(channels, 1, strides, in_channels=inner)

    def forward(self, x, *args):
        y = self.norm2(self.conv2(ops.relu(self.norm1(self.conv1(x)))))
        return ops.relu(y + self.short(x))


def small_resnet():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, 1, 1, in_channels=3), nn.BatchNorm(in_channels=8))
    net.add(nn.Activation("relu"), Block(8, 8, 1), nn.MaxPool2D(2, 2), Block(8, 12, 2))
    net.add(nn.AvgPool2D(2, 1), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10, in_units=12))
    net.initialize(seed=3)
    return net


def test_a_network_with_channels_first_transposes_at_its_edges_only():
    """What is left are weights, their gradients, the images, and the end of the network."""
    net = small_resnet()
    params = list(net.collect_params().values())
    leaves = [p.data() for p in params]
    wanted = [p.data() for p in params if p.grad_req != "null"]
    specs = [Spec((4, 3, 16, 16), F4)]
    captured = capture_gradient(lambda x: (ops.sum(net(x), 1),), specs, leaves, wanted)

    without = optimise(captured, [name for name in EXACT if name != "layout"])
    graph = optimise(captured, EXACT)

    weights = sum(1 for p in params if len(p.shape) == 4)
    assert transposes(graph) <= 2 * weights + 3 < transposes(without) / 2
    assert transposed_bytes(graph) < transposed_bytes(without) / 4
    rng = np.random.default_rng(0)
    images = [rng.standard_normal(specs[0].shape).astype(F4), np.ones((), F4)]
    results = [run_plan(g, [t.array.copy() for t in leaves], images) for g in (captured, graph)]
    for a, b in zip(*results, strict=True):
        assert a.tobytes() == b.tobytes()


def test_labels_are_not_taken_for_a_vector_that_is_broadcast():
    """Rows and classes are as many, so that only the kind of the row can tell them apart."""
    rng = np.random.default_rng(1)
    weights = [Tensor(rng.standard_normal((4, 4)).astype(F4)) for _ in range(3)]
    labels = Tensor(np.array([1, 0, 3, 2]))

    def function(x):
        a, b, c = (ops.transpose(w, (1, 0)) for w in weights)
        return (ops.softmax_cross_entropy(a + b + c + x, labels),)

    expected = eager(function, weights, [Tensor(np.zeros(4, F4))])
    graph = capture_gradient(function, [Spec((4,), F4)], weights, weights)
    arrays = [np.zeros(4, F4), np.ones((), F4)]
    found = run_plan(optimise(graph, EXACT), [w.array for w in weights], arrays)

    for a, b in zip(expected, found, strict=True):
        assert a.tobytes() == b.tobytes()
