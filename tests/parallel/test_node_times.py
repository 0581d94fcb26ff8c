"""Operations are measured one by one, without the arrays of the model."""

import numpy as np
import pytest

from hpctrain.autograd import Spec
from hpctrain.graph.capture import capture
from hpctrain.models import small_workload
from hpctrain.parallel.hollow import hollow
from hpctrain.parallel.node_times import measured_seconds
from hpctrain.parallel.program import Objective

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("name", ["mlp", "lenet", "gpt", "lstm", "resnet20"])
def test_every_operation_gets_a_time_and_views_none(name):
    work = small_workload(name, 4)
    work.net.initialize()
    specs = [Spec.of(a) for a in work.make(np.random.default_rng(0))]
    goal = Objective(work.net, work.loss)
    parameters = work.net.collect_params()
    for parameter in parameters.values():
        hollow(parameter)
    leaves = [p.data() for p in parameters.values()]
    graph = capture(lambda x, y: goal([x], [y])[:2], specs, leaves, training=True)

    seconds = measured_seconds(graph)

    assert len(seconds) == len(graph.nodes)
    for node, time_s in zip(graph.nodes, seconds, strict=True):
        assert (time_s == 0) == (node.row.view is not None), node
