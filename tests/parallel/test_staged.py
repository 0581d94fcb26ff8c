"""A model in stages: where its parameters are, in training and in inference."""

import numpy as np
import pytest

from hpctrain import nn
from hpctrain.autograd import Spec
from hpctrain.errors import ConfigError
from hpctrain.parallel.cut_graph import stage_graph
from hpctrain.parallel.program import Objective
from hpctrain.parallel.staged import Layout, StagedModel

pytestmark = pytest.mark.serial
SPECS = ([Spec((4, 6), np.dtype("f4"))], [Spec((4,), np.dtype("i8"))])


def network(normed=True):
    net = nn.HybridSequential()
    for _ in range(4):
        net.add(nn.Dense(6, "relu", in_units=6))
        if normed:
            net.add(nn.BatchNorm(axis=-1, in_channels=6))
    return net.initialize()


def model_of(net, layout):
    goal = Objective(net, nn.SoftmaxCrossEntropyLoss())
    return StagedModel(goal, net.collect_params(), layout, SPECS)


@pytest.mark.parametrize("balance", ["time", "memory", "params"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_scale_and_running_statistics_are_on_one_stage(stages, balance):
    """So that inference, which reads them at once, can be cut too."""
    model = model_of(network(), Layout(stages, balance=balance))

    for number in (1, 3, 5, 7):
        names = [n for n in model.names if n.startswith(f"{number}.")]
        assert len(names) == 4 and len({model.readers[n] for n in names}) == 1
    graph, cut = model.evaluation(SPECS)
    for stage in range(stages):
        for leaf in stage_graph(graph, cut, stage).leaves:
            assert stage in model.readers[model.names[graph.leaves.index(leaf)]]


def test_another_shape_is_cut_at_the_same_places():
    model = model_of(network(), Layout(3))
    other = ([Spec((2, 6), np.dtype("f4"))], [Spec((2,), np.dtype("i8"))])

    graph, cut = model.training(other)

    assert cut.bounds == model.cut.bounds
    assert graph.specs[graph.inputs[0]].shape == (2, 6)


def test_more_stages_than_operations_are_refused():
    with pytest.raises(ConfigError, match="needed at least 1 layer for each"):
        model_of(network(normed=False), Layout(50))
