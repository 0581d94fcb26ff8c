"""Memory by the root of depth, within a budget, and at little more work."""

import re

import pytest
from deep import assert_same_bits, convnet, finish, mlp

from hpctrain.autograd import Tensor
from hpctrain.errors import ConfigError
from hpctrain.graph.budget import Memory, plan_within
from hpctrain.graph.capture import capture
from hpctrain.graph.cuts import node_seconds, ways
from hpctrain.graph.marks import AGAIN
from hpctrain.graph.recompute import Forward

pytestmark = pytest.mark.serial
SQRT = Memory("sqrt")
LAYER = 32 * 64 * 4  # bytes of what a layer of the MLP makes


def work(plan):
    """Return the estimated time of what runs again, and of all else."""
    times = [
        (node_seconds(plan.graph, n), AGAIN in n.marks)
        for n in plan.graph.nodes
        if n.outputs[0] not in plan.views
    ]
    return sum(t for t, a in times if a), sum(t for t, a in times if not a)


@pytest.mark.slow
def test_memory_grows_with_the_root_of_depth_at_a_third_more_work():
    arenas = []
    for layers in (16, 64, 256):
        plan = plan_within(mlp(layers).captured(), SQRT, finish)
        extra, rest = work(plan)
        assert extra <= rest / 3
        arenas.append(plan.arena_bytes)

    # Without: layers + 2 values. With: about as many cross cuts as are in a segment.
    assert arenas[0] <= (2 * 4 + 2) * LAYER
    assert 1.6 < arenas[1] / arenas[0] < 2.2
    assert 1.6 < arenas[2] / arenas[1] < 2.2


def test_products_are_counted_a_third_of_the_step_more_often_at_most():
    plan = plan_within(mlp(64).captured(), SQRT, finish)
    products = [n for n in plan.graph.nodes if n.row.kind == "contract"]
    extra = [n for n in products if AGAIN in n.marks]

    assert 0 < len(extra) <= (len(products) - len(extra)) / 3


@pytest.mark.parametrize("make", [lambda: mlp(16), lambda: convnet(6)], ids=["mlp", "conv"])
def test_less_memory_changes_no_bit(make):
    net = make()
    plain = finish(net.captured())
    plan = plan_within(net.captured(), SQRT, finish)

    assert plan.arena_bytes < plain.arena_bytes
    assert_same_bits(net.run(plan), net.run(plain))


@pytest.mark.parametrize("share", [1.0, 0.9, 0.7, 0.5, 0.4])
def test_a_budget_is_kept_with_no_more_work_than_it_takes(share):
    net = mlp(32)
    plain = finish(net.captured())
    budget = int(share * plain.arena_bytes)
    plan = plan_within(net.captured(), Memory(budget=budget), finish)

    assert plan.arena_bytes <= budget
    assert budget - plan.arena_bytes <= 2 * LAYER  # not more is dropped than asked for
    # A layer whose values are dropped runs again once: 32 of them are a third of the step.
    extra, rest = work(plan)
    assert extra / rest <= (1 - share) / 3 * 1.7
    assert_same_bits(net.run(plan), net.run(plain))


def test_what_is_cheap_is_recomputed_first():
    net = convnet(6)
    plain = finish(net.captured())
    saved = sum(map(Forward(net.captured()).nbytes, Forward(net.captured()).saved))
    plan = plan_within(
        net.captured(), Memory(budget=plain.arena_bytes - int(0.3 * saved)), finish
    )
    again = {n.row.kind for n in plan.graph.nodes if AGAIN in n.marks}

    assert again
    assert "window" not in again


def test_a_budget_out_of_reach_is_refused_with_the_least_that_is_possible():
    net = mlp(16)
    with pytest.raises(ConfigError, match=r"memory.budget: got .* with all that") as caught:
        plan_within(net.captured(), Memory(budget=2 * LAYER), finish)

    least = int(re.search(r"take (\d+) KiB", str(caught.value))[1]) * 2**10
    assert plan_within(net.captured(), SQRT, finish).arena_bytes <= least
    assert plan_within(net.captured(), Memory(budget=least), finish)


def test_without_recomputation_a_budget_is_only_checked():
    net = mlp(8)
    full = finish(net.captured()).arena_bytes

    assert plan_within(net.captured(), Memory("off", full), finish).arena_bytes == full
    with pytest.raises(ConfigError, match="without recomputation"):
        plan_within(net.captured(), Memory("off", full - 1), finish)


def test_without_a_budget_nothing_is_recomputed():
    plan = plan_within(mlp(4).captured(), Memory(), finish)

    assert not [n for n in plan.graph.nodes if AGAIN in n.marks]


def test_each_way_has_less_memory_and_more_work_than_the_one_before():
    found = ways(Forward(mlp(32).captured()))

    assert len(found) > 10
    assert [w.nbytes for w in found] == sorted((w.nbytes for w in found), reverse=True)
    assert [w.seconds for w in found] == sorted(w.seconds for w in found)


def test_a_graph_without_a_gradient_has_no_ways():
    net = mlp(4)
    graph = capture(net.loss, [Tensor(net.x).spec], net.leaves, training=True)

    assert ways(Forward(graph)) == []
    assert plan_within(graph, SQRT, finish).arena_bytes == finish(graph).arena_bytes
