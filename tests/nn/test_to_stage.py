"""Blocks that say on which stage of a pipeline they run."""

import numpy as np
import pytest

from hpctrain import nn
from hpctrain.autograd import Spec, Tensor
from hpctrain.errors import ConfigError
from hpctrain.graph.capture import capture
from hpctrain.graph.marks import GROUP
from hpctrain.parallel.cut_graph import cut_graph, stage_graph

pytestmark = pytest.mark.serial


def captured(stages):
    """A network of four dense layers on these stages."""
    net = nn.HybridSequential()
    for number in stages:
        layer = nn.Dense(3, "relu", in_units=3)
        net.add(layer if number is None else layer.to_stage(number))
    net.initialize()
    leaves = [p.data() for p in net.collect_params().values()]
    spec = Spec((2, 3), np.dtype(np.float32))
    return capture(net, [spec], leaves, training=True)


def test_layers_are_on_their_stages():
    graph = captured([0, 0, 1, 1])

    ordered, cut = cut_graph(graph, 2)

    assert {node.mark(GROUP) for node in graph.nodes} == {0, 1}
    assert [len(stage_graph(ordered, cut, n).leaves) for n in range(2)] == [4, 4]


def test_a_block_without_a_stage_is_where_what_it_reads_is_made():
    ordered, cut = cut_graph(captured([0, None, 1, None]))

    assert [len(stage_graph(ordered, cut, n).leaves) for n in range(2)] == [4, 4]


def test_the_inner_block_counts():
    inner = nn.Dense(3, in_units=3).to_stage(1)
    outer = nn.HybridSequential()
    outer.add(nn.Dense(3, in_units=3), inner)
    outer.to_stage(0).initialize()
    leaves = [p.data() for p in outer.collect_params().values()]

    graph = capture(outer, [Spec((2, 3), np.dtype(np.float32))], leaves)

    groups = [node.mark(GROUP) for node in graph.nodes]
    assert groups == sorted(groups) and set(groups) == {0, 1}


def test_other_numbers_of_stages_and_ways_back_are_refused():
    with pytest.raises(ConfigError, match=r"got 3 stages for 2 groups \(0, 1\)"):
        cut_graph(captured([0, 0, 1, 1]), 3)
    with pytest.raises(ConfigError, match="needed edges from earlier groups to later ones"):
        cut_graph(captured([0, 1, 0, 1]), 2)


def test_eager_results_are_the_same():
    plain, placed = nn.Dense(3, in_units=3), nn.Dense(3, in_units=3).to_stage(4)
    for net in (plain, placed):
        net.initialize(seed=3)
    x = np.ones((2, 3), np.float32)

    np.testing.assert_array_equal(plain(Tensor(x)).asnumpy(), placed(Tensor(x)).asnumpy())
