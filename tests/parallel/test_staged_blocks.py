"""Blocks that say on which stage they run, trained on the ranks of these stages."""

import numpy as np
import pytest
from replicas import Model, batches
from staged_runs import staged, twin

from hpctrain import nn
from hpctrain.optim import SGD
from hpctrain.parallel.staged import Layout


def model():
    """Three layers; the second stage has one of them, the first two."""
    net = nn.HybridSequential()
    net.add(
        nn.Dense(7, "tanh", in_units=6).to_stage(0),
        nn.Dense(7, "relu", in_units=7),
        nn.Dense(5, in_units=7).to_stage(1),
    )
    net.initialize(seed=3)
    net.cast("float64")
    return Model(dict(net.collect_params().items()), net)


@pytest.mark.mpi(min_size=2)
def test_blocks_run_on_their_stages_and_give_the_bits_of_one_rank(world):
    optimizer, data = SGD(momentum=0.9), batches([(n, 6) for n in (7, 2, 5)])
    with world.split(int(world.rank >= 2)) as two:
        if world.rank >= 2:
            return
        results, arrays, step = staged(model(), optimizer, data, two, Layout(2, "1f1b", 2))

    wanted, reference = twin(model(), optimizer, data, 2)
    assert len(step.state.names) == (4, 2)[two.rank]
    assert [r.loss_sum for r in results] == [r.loss_sum for r in wanted]
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            np.testing.assert_array_equal(array, reference[name], name)
