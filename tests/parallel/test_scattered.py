"""What each rank computes, receives and sends of a graph."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Spec
from hpctrain.graph.capture import capture
from hpctrain.graph.marks import GROUP, marked
from hpctrain.parallel.scattered import divide, node_ranks

pytestmark = pytest.mark.serial


def shares(function, size, wanted=0):
    """Capture a function of one matrix, whose groups are ranks, and divide it."""
    graph = capture(function, [Spec((2, 3), np.dtype("f4"))])
    ranks = node_ranks(graph, {str(rank): rank for rank in range(size)}, {}, 0)
    aims = [(value, wanted) for value in graph.outputs]
    return [divide(graph, ranks, {}, aims, rank) for rank in range(size)]


def on(rank):
    return marked(**{GROUP: str(rank)})


def there_and_back(x):
    with on(0):
        y = ops.exp(x)
    with on(1):
        z = ops.tanh(y)
        ops.exp(z)
    with on(0):
        return ops.exp(z) + y


def names(share):
    return [node.row.name for node in share.plan.graph.nodes]


def test_a_group_that_is_used_twice_waits_in_between():
    first, second = shares(there_and_back, 2)

    assert names(first) == ["exp", "exp", "add"]
    assert [(m.peer, m.number) for m in first.received] == [(1, 0)]
    assert [(leg.start, leg.stop, len(leg.needs), len(leg.sends)) for leg in first.legs] == [
        (0, 1, 0, 1), (1, 3, 1, 0), (3, 3, 0, 0),
    ]  # fmt: skip
    assert second.legs[0].needs == second.received and len(second.legs[0].sends) == 1


def test_a_value_travels_once_to_each_rank():
    def function(x):
        with on(0):
            y = ops.exp(x)
        with on(1):
            z = ops.tanh(y) + ops.exp(y)
        with on(2):
            return ops.tanh(y) + z

    first, second, third = shares(function, 3, wanted=2)

    assert [mail.peer for leg in first.legs for mail in leg.sends] == [1, 2]
    assert len(second.received) == 1 and len(third.received) == 2
    assert all(
        share.fed == (() if share is not first else first.fed) for share in (second, third)
    )


def test_messages_have_the_names_of_their_values():
    graph = capture(there_and_back, [Spec((2, 3), np.dtype("f4"))])
    ranks = node_ranks(graph, {"0": 0, "1": 1}, {}, 0)
    exp = graph.nodes[0].outputs[0]

    first = divide(graph, ranks, {}, [(graph.outputs[0], 0)], 0, {exp: "embed"})

    assert [mail.name for leg in first.legs for mail in leg.sends] == ["embed"]
    assert [mail.name for mail in first.received] == [""]


def test_views_are_made_where_they_are_read():
    def function(x):
        with on(0):
            y = ops.transpose(ops.exp(x))
        with on(1):
            return ops.exp(y)

    first, second = shares(function, 2, wanted=1)

    assert names(first) == ["exp"]
    assert names(second) == ["transpose", "exp"]


def test_what_is_wanted_elsewhere_is_sent_there():
    def function(x):
        with on(1):
            return ops.exp(x)

    first, second = shares(function, 2, wanted=0)

    assert names(first) == [] and [leg.needs for leg in first.legs] == [first.received]
    assert len(second.legs[0].sends) == 1
