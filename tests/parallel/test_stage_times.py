"""Times of stages: measured without a trace of it in what is trained."""

import numpy as np
import pytest
from mpi4py import MPI
from replicas import convnet, mlp

from hpctrain.autograd import Spec
from hpctrain.comm.group import Group
from hpctrain.optim import SGD
from hpctrain.parallel.pipeline_stages import RankStages
from hpctrain.parallel.stage_times import message_seconds, stage_seconds
from hpctrain.parallel.staged import Layout, StagedModel
from hpctrain.parallel.state import ModelState


@pytest.mark.serial
@pytest.mark.parametrize(("make", "shape"), [(convnet, (6, 5, 2)), (lambda: mlp(0.5), (6,))])
def test_measuring_leaves_parameters_and_layer_state_as_they_were(make, shape):
    """Running statistics and random streams among them."""
    model, layout = make(), Layout(2, "1f1b", 1, 1, "params")
    specs = (Spec((4, *shape), np.dtype("f8")),), (Spec((4,), np.dtype("i8")),)
    staged = StagedModel(model.objective, model.parameters, layout, specs)
    state = ModelState(model.parameters, SGD())
    before = {name: array.copy() for name, array in state.arrays().items()}

    for rank in range(2):
        stages = RankStages(staged, state, rank, False)
        stages.make_room(layout.plan(1))
        found = stage_seconds(stages.bound(specs), [*specs[0], *specs[1]], state)
        assert set(found) == {rank}
        assert all(0 <= seconds < 60 for seconds in found[rank])

    for name, array in state.arrays().items():
        np.testing.assert_array_equal(array, before[name], name)


def test_messages_take_as_long_for_all_ranks(world):
    found = message_seconds(world, 1000)

    assert min(found) >= 0 and (found[1] > 0) == (world.size > 1)
    assert all(tuple(other) == found for other in world.allgather_obj(list(found)))


@pytest.mark.serial
def test_a_rank_alone_sends_nothing():
    with Group(MPI.COMM_SELF.Dup()) as alone:
        assert message_seconds(alone, 10) == (0.0, 0.0)
