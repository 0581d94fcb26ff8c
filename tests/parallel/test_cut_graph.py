"""Graphs in stages: run one after the other they are the whole graph."""

import numpy as np
import pytest
from programs import random_program
from replicas import convnet, mlp

from hpctrain import nn, ops
from hpctrain.autograd import Spec, Tensor, assign
from hpctrain.cli.subject import of_model
from hpctrain.errors import ConfigError
from hpctrain.graph.capture import capture
from hpctrain.graph.execute import Executor
from hpctrain.graph.marks import marked
from hpctrain.graph.passes import EXACT, optimise, verify
from hpctrain.graph.plan import make_plan
from hpctrain.parallel.cut_graph import cut_graph, network_of, stage_graph

pytestmark = pytest.mark.serial


def run(graph, leaves, inputs):
    """Return the outputs of a graph by value, with its leaves from a table."""
    plan = make_plan(optimise(graph, EXACT))
    outputs = [np.empty(graph.specs[v].shape, graph.specs[v].dtype) for v in graph.outputs]
    found = Executor(plan, [leaves[v] for v in graph.leaves], dict(enumerate(outputs)))
    found([inputs[v] for v in graph.inputs])
    return dict(zip(graph.outputs, outputs, strict=True))


def run_in_stages(graph, cut, leaves, inputs):
    """Run the stages in turn; each gets what the one before sends, and what is fed to it."""
    outputs, sent = {}, {}
    for number in range(len(cut.stages)):
        part = verify(stage_graph(graph, cut, number))
        assert set(part.inputs) <= sent.keys() | inputs.keys()
        found = run(part, leaves, {**inputs, **sent})
        sent = {v: found[v] for v in cut.stages[number].sends}
        outputs.update(found)
    return [outputs[v] for v in graph.outputs]


def copied(graph, arrays):
    return {v: np.array(a) for v, a in zip(graph.leaves, arrays, strict=True)}


def whole_and_parts(graph, stages, balance, leaves, inputs):
    """Compare a whole graph with its stages: outputs, and leaves after the run."""
    fed = dict(zip(graph.inputs, inputs, strict=True))
    one, other = copied(graph, leaves), copied(graph, leaves)
    wanted = run(graph, one, fed)
    ordered, cut = cut_graph(graph, stages, balance)

    found = run_in_stages(ordered, cut, other, fed)

    for value, array in zip(graph.outputs, found, strict=True):
        np.testing.assert_array_equal(array, wanted[value])
    for leaf in graph.leaves:
        np.testing.assert_array_equal(one[leaf], other[leaf])
    return cut


@pytest.mark.parametrize("seed", range(20))
def test_stages_of_a_random_program_give_the_same_bits(seed):
    function, leaves, inputs = random_program(seed)
    specs = [t.spec for t in inputs]
    graph = capture(function, specs, leaves)
    balance = ("time", "memory", "params")[seed % 3]

    arrays = [t.array for t in leaves], [t.array for t in inputs]
    whole_and_parts(graph, 2 + seed % 3, balance, *arrays)


def normalised(x):
    """A function of ``x`` with layers that change state: batch norms, and one with no state."""
    net = nn.HybridSequential()
    net.add(nn.Dense(8), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(8), nn.BatchNorm())
    net.initialize(seed=0)
    net(Tensor(x))
    return net, [p.data() for p in net.collect_params().values()]


@pytest.mark.parametrize("balance", ["time", "memory", "params"])
def test_stages_change_state_as_the_whole_graph_does(balance):
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    net, leaves = normalised(x)
    graph = capture(net, [Spec.of(x)], leaves, training=True)

    cut = whole_and_parts(graph, 3, balance, [t.array for t in leaves], [x])

    assert len(cut.stages) == 3 and len(graph.assigns) == 4


@pytest.mark.parametrize(("make", "shape"), [(mlp, (6, 6)), (convnet, (6, 7, 5, 2))])
def test_stages_of_a_model_with_its_loss_give_the_same_bits(make, shape):
    model = make()
    leaves = [p.data() for p in model.parameters.values()]
    x, y = np.random.default_rng(0).normal(size=shape), np.arange(shape[0]) % 3
    graph = capture(
        lambda a, b: model.objective([a], [b])[:2], [Spec.of(x), Spec.of(y)], leaves
    )

    whole_and_parts(graph, 4, "time", [t.array for t in leaves], [x, y])


def test_dropout_draws_the_same_in_a_stage():
    model = mlp(0.5)
    leaves = [p.data() for p in model.parameters.values()]
    x = np.random.default_rng(0).normal(size=(6, 6))
    graph = capture(model.net, [Spec.of(x)], leaves, training=True)

    whole_and_parts(graph, 3, "params", [t.array for t in leaves], [x])


VECTOR = Spec((4,), np.dtype(np.float64))


def names(graph, cut):
    """The operations of each stage."""
    return [[n.row.name for n in graph.nodes[s.start : s.stop]] for s in cut.stages]


def test_tied_weights_are_listed_with_their_stages():
    table = Tensor(np.ones((5, 4)))

    def tied(ids):
        with marked(ctx_group="in"):
            h = ops.take(table, ids)
        with marked(ctx_group="middle"):
            h = ops.relu(h)
        with marked(ctx_group="out"):
            return ops.dense(h, table)

    graph = capture(tied, [Spec((3,), np.dtype(np.int64))], [table])

    assert cut_graph(graph)[1].shared == {graph.leaves[0]: (0, 2)}


def test_groups_are_stages_though_the_graph_goes_to_and_fro_between_them():
    def function(x):
        with marked(ctx_group="one"):
            h = ops.relu(x)
        with marked(ctx_group="two"):
            t = ops.tanh(h)
        with marked(ctx_group="one"):
            s = ops.sigmoid(h)
        with marked(ctx_group="two"):
            return t + s

    graph = capture(function, [VECTOR])
    ordered, cut = cut_graph(graph, 2, seconds=[1.0, 2.0, 4.0, 8.0])

    assert names(ordered, cut) == [["relu", "sigmoid"], ["tanh", "add"]]
    assert [stage.time_s for stage in cut.stages] == [5.0, 10.0]
    whole_and_parts(graph, 0, "time", [], [np.arange(4.0)])


def test_a_node_without_a_group_is_where_what_it_reads_is_made_or_it_is_needed():
    def function(x, y):
        target = ops.exp(y)  # reads nothing that is made: on the stage that needs it
        with marked(ctx_group="one"):
            h = ops.relu(x)
        h = ops.tanh(h)
        with marked(ctx_group="two"):
            h = ops.sigmoid(h)
        return ops.sum(h - target)

    ordered, cut = cut_graph(capture(function, [VECTOR, VECTOR]))

    assert names(ordered, cut) == [["relu", "tanh"], ["exp", "sigmoid", "subtract", "sum"]]
    assert stage_graph(ordered, cut, 0).inputs == ordered.inputs[:1]
    assert stage_graph(ordered, cut, 1).inputs == (cut.stages[0].sends[0], ordered.inputs[1])


def test_edges_between_groups_that_go_back_are_refused():
    def function(x):
        with marked(ctx_group="one"):
            h = ops.relu(x)
        with marked(ctx_group="two"):
            h = ops.tanh(h)
        with marked(ctx_group="one"):
            return ops.exp(h)

    with pytest.raises(
        ConfigError, match="of group 'one' reads what group 'two' makes, needed"
    ):
        cut_graph(capture(function, [VECTOR]))


def test_other_numbers_of_stages_than_groups_are_refused():
    def function(x):
        with marked(ctx_group="one"):
            return ops.exp(ops.relu(x))

    graph = capture(function, [VECTOR])

    assert len(cut_graph(graph)[1].stages) == 1
    with pytest.raises(ConfigError, match=r"got 2 stages for 1 groups \(one\), needed as many"):
        cut_graph(graph, 2)


def twice(group):
    """Dropout of one stream before and behind a relu, in the groups named."""
    stream = Tensor(np.array([7, 0, 0], np.uint64))

    def draw(x):
        y, _ = ops.dropout(x, stream, 0.5)
        assign(stream, ops.advance(stream))
        return y

    def function(x):
        with marked(**group("one")):
            h = ops.relu(draw(x))
        with marked(**group("two")):
            return ops.tanh(draw(h))

    return capture(function, [Spec((4, 2), np.dtype(np.float64))], [stream], training=True)


def test_state_on_two_stages_is_refused_if_the_user_asks_for_it():
    with pytest.raises(ConfigError, match="state is read and changed on both sides of"):
        cut_graph(twice(lambda name: {"ctx_group": name}))


def test_a_balanced_cut_goes_around_what_uses_one_piece_of_state():
    graph = twice(lambda name: {})

    ordered, cut = cut_graph(graph, 2)

    assert names(ordered, cut)[1] == ["tanh"]
    with pytest.raises(ConfigError, match="got 2 layers for 3 stages"):
        cut_graph(graph, 3)


def test_layers_of_a_graph_keep_no_views():
    graph = capture(lambda x: ops.reshape(ops.exp(x), (2, 2)), [VECTOR])

    exp, reshape = network_of(graph).layers

    assert (exp.memory_bytes, reshape.memory_bytes) == (32, 0)


@pytest.mark.parametrize("name", ["gpt", "resnet20", "lstm"])
def test_workloads_are_cut_into_legal_stages_of_about_equal_time(name):
    found = of_model(name, small=True)
    specs, count = [*found.specs[0], *found.specs[1]], len(found.specs[0])
    graph = capture(
        lambda *t: found.objective(t[:count], t[count:])[:2],
        specs, list(found.leaves().values()), training=True,
    )  # fmt: skip

    ordered, cut = cut_graph(graph, 3)

    for number in range(3):
        verify(stage_graph(ordered, cut, number))
    times = [stage.time_s for stage in cut.stages]
    assert max(times) < 0.5 * sum(times)
