"""Plans of a training step and of an evaluation against eager execution."""

import numpy as np
import pytest
from replicas import batches, convnet, mlp

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor, record
from hpctrain.graph.execute import Executor
from hpctrain.parallel.program import (
    Objective,
    StepDefinition,
    count_correct,
    evaluation_plan,
    training_plan,
)

pytestmark = pytest.mark.serial
MODELS = {"mlp": (mlp, (6, 6)), "conv": (convnet, (6, 7, 5, 2))}


def leaves_of(model):
    return [p.data() for p in model.parameters.values()]


def specs_of(x, y):
    return (Spec.of(x),), (Spec.of(y),)


@pytest.mark.parametrize("name", MODELS)
def test_a_training_plan_gives_losses_right_answers_and_gradients(name):
    make, shape = MODELS[name]
    model = make()
    leaves = leaves_of(model)
    x, y = batches([shape])[0]
    with record():
        losses = ops.softmax_cross_entropy(model.net(Tensor(x)), Tensor(y))
        total = ops.sum(losses) * 0.25
    total.backward()

    plan = training_plan(StepDefinition(model.objective, specs_of(x, y), leaves, leaves))
    outs = [np.full(plan.graph.specs[v].shape, np.nan) for v in plan.graph.outputs]
    Executor(plan, [t.array for t in leaves])([x, y, np.array(0.25)], outs)

    np.testing.assert_array_equal(outs[0], losses.asnumpy())
    assert outs[1] == (model.net(Tensor(x)).asnumpy().argmax(-1) == y).sum()
    for leaf, gradient in zip(leaves, outs[2:], strict=True):
        np.testing.assert_allclose(gradient, leaf.grad.asnumpy(), rtol=1e-13, atol=1e-15)


def test_an_evaluation_plan_leaves_dropout_out_and_changes_nothing():
    model = mlp(0.5)
    leaves = leaves_of(model)
    x, y = batches([(6, 6)])[0]
    before = [t.asnumpy().copy() for t in leaves]

    plan = evaluation_plan(StepDefinition(model.objective, specs_of(x, y), leaves))
    outs = [np.empty(plan.graph.specs[v].shape) for v in plan.graph.outputs]
    Executor(plan, [t.array for t in leaves])([x, y], outs)

    np.testing.assert_array_equal(outs[2], mlp().net(Tensor(x)).asnumpy())
    for leaf, value in zip(leaves, before, strict=True):
        np.testing.assert_array_equal(leaf.asnumpy(), value)


def test_right_answers_are_counted_over_all_rows():
    logits = Tensor(np.array([[[0.0, 1.0], [2.0, 1.0]], [[3.0, 3.0], [0.0, 5.0]]]))
    labels = Tensor(np.array([[1, 1], [0, 0]], np.int32))

    assert float(count_correct(logits, labels)) == 2  # of equal ones the first counts
    assert count_correct(logits, labels).shape == ()


def test_without_a_count_there_are_no_right_answers():
    goal = Objective(lambda x: x * 2.0, lambda o, y: ops.square(o - y).sum(axis=1))

    losses, correct, outputs = goal([Tensor(np.ones((3, 2)))], [Tensor(np.ones((3, 2)))])

    np.testing.assert_array_equal(losses.asnumpy(), 2.0)
    assert (float(correct), outputs.shape) == (0.0, (3, 2))
