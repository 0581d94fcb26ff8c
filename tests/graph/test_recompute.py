"""What is recomputed has the same bits, and nothing happens twice that must happen once."""

import numpy as np
import pytest
from deep import assert_same_bits, convnet, finish, mlp
from programs import random_program

from hpctrain import nn, ops
from hpctrain.autograd import Tensor
from hpctrain.graph.capture import capture, capture_gradient
from hpctrain.graph.execute import Executor
from hpctrain.graph.marks import AGAIN, BACKWARD, marked
from hpctrain.graph.passes import optimise, verify
from hpctrain.graph.recompute import Forward, recompute, recompute_regions

pytestmark = pytest.mark.serial
NETS = {"mlp": lambda: mlp(6), "conv": lambda: convnet(3)}


def again(graph):
    return [node for node in graph.nodes if AGAIN in node.marks]


@pytest.mark.parametrize("seed", range(30))
def test_any_choice_of_what_is_kept_gives_the_same_bits(seed):
    function, leaves, inputs = random_program(seed, length=20)
    for leaf in leaves:
        leaf.attach_grad()
    graph = capture_gradient(function, [t.spec for t in inputs], leaves, leaves)
    forward = Forward(graph)
    rng = np.random.default_rng(seed)
    kept = {v for v in forward.maker if rng.random() < 0.3}

    def run(graph):
        plan = finish(graph)
        outs = [
            np.full(plan.graph.specs[v].shape, np.nan, plan.graph.specs[v].dtype)
            for v in plan.graph.outputs
        ]
        arrays = [*(t.array for t in inputs), np.ones(())]
        Executor(plan, [t.array for t in leaves])(arrays, outs)
        return outs

    changed = verify(recompute(forward, kept))

    assert_same_bits(run(graph), run(changed))


@pytest.mark.parametrize("name", NETS)
def test_a_net_of_which_nothing_is_kept_gives_the_bits_of_eager_execution(name):
    net = NETS[name]()
    graph = recompute(Forward(net.captured()), ())

    assert again(graph)
    assert_same_bits(net.run(finish(graph)), net.eager())


def test_running_statistics_and_streams_move_on_once():
    net = convnet(2)
    graph = recompute(Forward(net.captured()), ())

    once = net.run(finish(net.captured()))
    twice = net.run(finish(graph))

    assert {n.row.name for n in again(graph)} >= {"batch_norm", "dropout"}
    assert len(graph.assigns) == len(net.captured().assigns) == 2 * 3
    assert_same_bits(once[-len(net.leaves) :], twice[-len(net.leaves) :])
    for parameter, value, start in zip(
        net.parameters, twice[-len(net.leaves) :], net.start, strict=True
    ):
        if parameter.grad_req == "null":
            assert (value != start).any()


def test_the_passes_do_not_undo_it():
    graph = recompute(Forward(mlp(6).captured()), ())

    assert len(again(optimise(graph))) == len(again(graph)) > 0


def test_the_nodes_that_were_there_stay_in_their_order():
    graph = mlp(6).captured()
    changed = recompute(Forward(graph), ())

    rest = [node.outputs for node in changed.nodes if AGAIN not in node.marks]

    assert rest == [node.outputs for node in graph.nodes]


def test_a_copy_runs_just_before_it_is_first_read():
    graph = recompute(Forward(mlp(6).captured()), ())
    first = {}
    for place, node in enumerate(graph.nodes):
        for value in node.inputs:
            first.setdefault(value, place)

    for place, node in enumerate(graph.nodes):
        if AGAIN in node.marks:
            reader = min(first[v] for v in node.outputs if v in first)
            assert all(AGAIN in n.marks for n in graph.nodes[place + 1 : reader])


def test_what_is_kept_is_not_copied():
    forward = Forward(mlp(6).captured())

    assert recompute(forward, forward.saved).nodes == forward.graph.nodes


def test_only_the_gradient_walk_is_marked_backward():
    graph = mlp(2).captured()
    backward = [BACKWARD in node.marks for node in graph.nodes]

    assert backward == sorted(backward)
    assert [n.row.name for n, b in zip(graph.nodes, backward, strict=True) if not b] == [
        "dense", "relu", "dense", "relu", "square", "sum",
    ]  # fmt: skip


def test_marks_of_scopes_reach_the_nodes_inside_them():
    def function(x):
        with marked(ctx_group="dev1"):
            y = ops.exp(x)
            with marked(ctx_group="dev2", region=4):
                y = ops.tanh(y)
        return ops.relu(y)

    graph = capture(function, [Tensor(np.ones(3)).spec])

    assert [dict(node.marks) for node in graph.nodes] == [
        {"ctx_group": "dev1"}, {"ctx_group": "dev2", "region": 4}, {},
    ]  # fmt: skip


def test_values_inside_a_marked_block_are_not_saved():
    net = mlp(6)
    inner = nn.HybridSequential()
    inner.add(*list(net.net)[1:4])
    plain = net.captured()

    def function(x):
        y = net.net[0](x)
        y = nn.recompute(inner)(y)
        return (ops.square(net.net[5](net.net[4](y))).sum(axis=1),)

    graph = capture_gradient(function, [Tensor(net.x).spec], net.leaves, net.wanted)
    changed = recompute_regions(graph)
    names = [node.row.name for node in again(changed)]

    assert recompute_regions(plain) is plain
    assert names == ["dense", "relu"] * 2  # the last of the three is kept: it is what comes out
    assert_same_bits(net.run(finish(changed)), net.run(finish(plain)))
