"""A step within a budget: the same bits on any number of ranks, the same order of exchange."""

import numpy as np
import pytest
from replicas import Model, batches, parallel, parameters, trainer

from hpctrain import ops
from hpctrain.autograd import Spec, assign, is_training
from hpctrain.engine import create
from hpctrain.errors import ConfigError
from hpctrain.graph.budget import Memory
from hpctrain.graph.marks import AGAIN
from hpctrain.graph.segments import cut
from hpctrain.nn import Parameter
from hpctrain.optim import SGD
from hpctrain.parallel.program import StepDefinition, training_plan
from hpctrain.parallel.work import Options

LAYERS = 12
SPECS = (Spec((6, 8), np.dtype(np.float64)),), (Spec((6,), np.dtype(np.int64)),)
DATA = [(6, 8)] * 3


def deep():
    """Dense layers with dropout behind every third."""
    model = Model(parameters({f"w{i}": (8, 8) for i in range(LAYERS)}), None)
    stream = Parameter("stream", (3,), np.uint64, differentiable=False)
    stream.set_data(np.array([12345, 0, 0], np.uint64))
    model.parameters["stream"] = stream

    def net(x):
        t = model.tensor
        for i in range(LAYERS):
            x = ops.tanh(ops.dense(x, t(f"w{i}"), None))
            if i % 3 == 2 and is_training():
                x = ops.dropout(x, t("stream"), 0.2)[0]
                assign(t("stream"), ops.advance(t("stream")))
        return x

    model.net = net
    return model


def plan_of(memory):
    model = deep()
    leaves = [p.data() for p in model.parameters.values()]
    step = StepDefinition(model.objective, SPECS, leaves, leaves[:-1], memory=memory)
    return training_plan(step)


@pytest.mark.parametrize(
    "memory", [Memory("sqrt"), Memory(budget=4096)], ids=["sqrt", "budget"]
)
def test_training_with_less_memory_gives_the_same_bits(world, memory):
    def trained(memory):
        options = Options(memory=memory)
        return parallel(
            deep(), SGD(momentum=0.9), world, batches(DATA), options=options, slice_bytes=512
        )

    plain, state = trained(Memory())
    results, changed = trained(memory)

    assert results == plain
    np.testing.assert_array_equal(changed.flat.weights, state.flat.weights)


@pytest.mark.serial
def test_gradients_become_final_in_the_order_in_which_they_did():
    def order(plan):
        places = {value: (i,) for i, value in enumerate(plan.graph.outputs[2:])}
        segments = cut(plan, {}, places)
        return [s for segment in segments for s in segment.final]

    plain, changed = plan_of(Memory()), plan_of(Memory("sqrt"))

    assert any(AGAIN in node.marks for node in changed.graph.nodes)
    assert order(changed) == order(plain) == list(range(LAYERS))[::-1]


@pytest.mark.serial
def test_a_budget_that_cannot_be_kept_is_refused_before_the_first_step():
    with pytest.raises(ConfigError, match=r"memory.budget: got .* raise the budget"):
        plan_of(Memory(budget=64))


@pytest.mark.serial
def test_the_step_that_is_run_is_the_one_that_was_asked_for(world):
    def prepared(**options):
        with create("serial") as engine:
            step = trainer(
                deep(), SGD(), world, engine, batches(DATA)[0], Options(**options), 512
            )
            return step.of_first_shape().plan.graph.nodes

    assert not any(AGAIN in node.marks for node in prepared())
    assert any(AGAIN in node.marks for node in prepared(memory=Memory("sqrt")))
    fused = [["+" in node.row.name for node in prepared(fuse=f)] for f in (True, False)]
    assert any(fused[0]) and not any(fused[1])


def test_a_fused_step_gives_the_same_numbers_within_rounding(world):
    plain, state = parallel(deep(), SGD(momentum=0.9), world, batches(DATA), slice_bytes=512)
    options = Options(fuse=True)

    fused, changed = parallel(
        deep(), SGD(momentum=0.9), world, batches(DATA), options=options, slice_bytes=512
    )

    for a, b in zip(plain, fused, strict=True):
        assert b.loss_sum == pytest.approx(a.loss_sum, rel=1e-12)
        assert (a.correct, a.count) == (b.correct, b.count)
    np.testing.assert_allclose(changed.flat.weights, state.flat.weights, rtol=0, atol=1e-12)
