"""Stages within a budget: less is kept, the bits stay."""

import numpy as np
import pytest
from replicas import Model, batches, parameters
from staged_runs import staged, twin

from hpctrain import ops
from hpctrain.autograd import Spec
from hpctrain.errors import ConfigError
from hpctrain.graph.budget import Memory
from hpctrain.optim import SGD
from hpctrain.parallel.pipeline_stages import RankStages
from hpctrain.parallel.staged import Layout, StagedModel
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import Options

DEPTH = 12


def deep():
    """Twelve layers of equal width with two functions between them."""
    shapes = {f"w{i:02d}": (6, 6) for i in range(DEPTH)}
    model = Model(parameters(shapes), None)

    def net(x):
        for name in shapes:
            x = ops.sigmoid(ops.tanh(x @ model.tensor(name)))
        return x

    model.net = net
    return model


def stages(memory, samples=40):
    model, layout = deep(), Layout(2, "1f1b", 4, 1, "params")
    specs = (Spec((samples, 6), np.dtype("f8")),), (Spec((samples,), np.dtype("i8")),)
    whole = StagedModel(model.objective, model.parameters, layout, specs)
    found = RankStages(whole, ModelState(model.parameters, SGD()), 0, False, memory)
    found.make_room(layout.plan(4))
    found.bound(specs)
    return found.arena_bytes + found.kept_bytes


@pytest.mark.serial
def test_a_stage_takes_no_more_than_its_budget():
    """With as little computed again as it takes: more budget, more kept."""
    full, least = stages(Memory()), stages(Memory("sqrt"))
    middle = (full + least) // 2

    assert least < 0.8 * full
    assert least <= stages(Memory(budget=middle)) <= middle
    assert stages(Memory(budget=full)) == full


@pytest.mark.serial
@pytest.mark.parametrize("recompute", ["auto", "off"])
def test_a_budget_that_is_too_small_is_refused_with_the_least(recompute):
    with pytest.raises(
        ConfigError, match=r"got 1 KiB for stage 0, but its values take \d+ KiB"
    ):
        stages(Memory(recompute, budget=1024))


@pytest.mark.parametrize("sharded", [False, True])
def test_recomputation_and_a_sharded_optimizer_keep_the_bits(world, sharded):
    """Pairs of replicas where the ranks are even in number."""
    options = Options(memory=Memory("sqrt"), sharded=sharded)
    size = 2 if world.size % 2 == 0 else world.size
    layout, data = Layout(size, "1f1b", 2, 1, "params"), batches([(8, 6), (8, 6)])
    sgd = SGD(momentum=0.9)

    results, arrays, _ = staged(deep(), sgd, data, world, layout, options)
    wanted, reference = twin(deep(), sgd, data, 2)

    for result, other in zip(results, wanted, strict=True):
        assert result.loss_sum == pytest.approx(other.loss_sum, rel=1e-12)
    for name in (n for n in arrays if n.startswith("parameters")):
        np.testing.assert_allclose(arrays[name], reference[name], rtol=1e-12, err_msg=name)
