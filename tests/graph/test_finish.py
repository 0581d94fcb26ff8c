"""The pass ``finish``: which nodes go on with what follows them, and which do not."""

import numpy as np
import pytest
from two_kernels import kernels, needs_dnnl

from hpctrain import ops
from hpctrain.autograd import Spec
from hpctrain.graph.capture import capture
from hpctrain.graph.execute import Executor
from hpctrain.graph.marks import marked
from hpctrain.graph.passes import EXACT, FUSED, optimise
from hpctrain.graph.plan import make_plan

pytestmark = [pytest.mark.serial, needs_dnnl]

F4 = np.dtype("float32")
X, WEIGHT, OTHER = (Spec(s, F4) for s in ((2, 8, 8, 16), (16, 3, 3, 16), (2, 8, 8, 16)))
BIAS = Spec((16,), F4)


def conv(x, weight, bias=None):
    return ops.conv(x, weight, bias, padding=1)


def planned(function, *specs):
    """Return the names of the rows that run, and whether the outputs have the same bits."""
    graph = capture(function, specs)
    arrays = [
        np.random.default_rng(i).standard_normal(s.shape, F4) for i, s in enumerate(specs)
    ]
    results = []
    for passes in (FUSED, EXACT):
        plan = make_plan(optimise(graph, passes))
        outs = {i: np.full(plan.graph.specs[v].shape, np.nan, F4)
                for i, v in enumerate(plan.graph.outputs)}  # fmt: skip
        Executor(plan, [], outs)(arrays)
        results.append((plan, outs))
    (plan, outs), (_, want) = results
    same = all(np.array_equal(outs[i], want[i]) for i in outs)
    return [node.row.name for node in plan.graph.nodes], same


@pytest.mark.parametrize(
    ("function", "more"),
    [
        (lambda x, w: ops.leaky_relu(conv(x, w), 0.3), []),
        (lambda x, w, b: ops.leaky_relu(conv(x, w, b), 0.3), [BIAS]),
        (lambda x, w, r: conv(x, w) + r, [OTHER]),
        (lambda x, w, r: ops.leaky_relu(r + conv(x, w), 0.3), [OTHER]),
        (lambda x, w: x + conv(x, w), []),
        (lambda x, w, b: ops.leaky_relu(conv(x, w) + b, 0.3), [BIAS]),
    ],
)
def test_a_convolution_goes_on_with_a_rectifier_and_sums(function, more):
    assert planned(function, X, WEIGHT, *more) == (["conv_then"], True)


def test_a_transposed_one_goes_on_with_its_bias():
    def function(x, w, b):
        return ops.leaky_relu(ops.conv_transpose(x, w, b, padding=1), 0.3)

    assert planned(function, X, WEIGHT, BIAS) == (["conv_grad_data_then"], True)


def test_what_is_added_may_be_made_later():
    def function(x, w):
        y = conv(x, w)
        return y + ops.softmax(x)

    assert planned(function, X, WEIGHT) == (["softmax", "conv_then"], True)


def test_of_two_convolutions_the_later_goes_on():
    names, same = planned(lambda x, w, v: conv(x, w) + conv(x, v), X, WEIGHT, WEIGHT)

    assert names == ["conv", "conv_then"]
    assert same


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (lambda y: (ops.leaky_relu(y, 0.3), y * 1.0))(conv(x, w)),  # two readers
        lambda x, w: (lambda y: (y, ops.leaky_relu(y, 0.3)))(conv(x, w)),  # an output
        lambda x, w: ops.relu(conv(x, w)),  # hides what is not a number
        lambda x, w: (lambda y: y + y)(conv(x, w)),
        lambda x, w: ops.leaky_relu(conv(x, w), 0.3) * 2.0,  # more than the kernel can
        lambda x, w: ops.sum(ops.leaky_relu(conv(x, w), 0.3)),
        lambda x, w: ops.leaky_relu(ops.reshape(conv(x, w), (-1,)), 0.3),
    ],
)
def test_else_it_stays_as_it_is(function):
    names, _ = planned(function, X, WEIGHT)

    assert "conv" in names
    assert "conv_then" not in names


def test_groups_of_devices_are_not_mixed():
    def function(x, w):
        with marked(ctx_group="a"):
            y = conv(x, w)
        with marked(ctx_group="b"):
            return ops.leaky_relu(y, 0.3)

    assert "conv_then" not in planned(function, X, WEIGHT)[0]


def test_without_the_library_nothing_is_joined():
    with kernels("numpy"):
        names, _ = planned(lambda x, w: ops.leaky_relu(conv(x, w), 0.3), X, WEIGHT)

    assert names[0] == "conv"
