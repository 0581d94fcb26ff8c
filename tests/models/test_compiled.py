"""The zoo: hybridized equals eager bit for bit, fused equals it within rounding."""

import numpy as np
import pytest

from hpctrain import models
from hpctrain.autograd import Tensor, record
from hpctrain.graph.execute import Executor
from hpctrain.models.workloads import WORKLOADS
from hpctrain.parallel.program import Objective, StepDefinition, training_plan

pytestmark = pytest.mark.serial


def made(name):
    work = models.small_workload(name)
    work.net.initialize(seed=1)
    return work, [Tensor(a) for a in work.make(np.random.default_rng(0))]


def step(work, x, y):
    """Return losses, gradients and state after one recorded step."""
    with record():
        losses = work.loss(work.net(x), y)
    losses.backward()
    held = work.net.collect_params().values()
    grads = [p.grad().asnumpy() for p in held if p.grad_req != "null"]
    return losses.asnumpy(), grads, [p.data().asnumpy() for p in held if p.grad_req == "null"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_hybridized_equals_eager_bit_for_bit(name):
    (eager, data), (hybrid, _) = made(name), made(name)
    hybrid.net.hybridize()
    hybrid.loss.hybridize()

    for _ in range(2):
        expected, found = step(eager, *data), step(hybrid, *data)

        np.testing.assert_array_equal(found[0], expected[0])
        for one, many in zip(expected[1:], found[1:], strict=True):
            for a, b in zip(one, many, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_fused_plan_equals_eager_within_rounding(name):
    work, (x, y) = made(name)
    held = work.net.collect_params().values()
    leaves = [p.data() for p in held]
    trained = [p.data() for p in held if p.grad_req != "null"]
    goal = Objective(work.net, work.loss)
    specs = (x.spec,), (y.spec,)
    plan = training_plan(StepDefinition(goal, specs, leaves, trained, fuse=True))
    graph = plan.graph
    outs = [np.full(graph.specs[v].shape, np.nan, graph.specs[v].dtype) for v in graph.outputs]
    values = [t.value.copy() for t in leaves]

    Executor(plan, values)([x.value, y.value, np.ones((), np.float32)], outs)

    losses, grads, _ = step(work, x, y)
    np.testing.assert_allclose(outs[0], losses, rtol=1e-5, atol=1e-6)
    for a, b in zip(outs[2:], grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5 * max(1.0, np.abs(b).max()))
