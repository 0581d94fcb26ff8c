"""Pieces: as few as need little memory, and the numbers of the whole batch."""

from types import SimpleNamespace

import numpy as np
import pytest
from replicas import batches, convnet, mlp, parameters

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor
from hpctrain.errors import ConfigError
from hpctrain.optim import SGD
from hpctrain.parallel.evaluate import Evaluator
from hpctrain.parallel.pieces import of_samples, pieces
from hpctrain.parallel.program import Objective, StepDefinition, count_correct, evaluation_plan
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import Work

pytestmark = pytest.mark.serial


def plans(bytes_a_sample, naive_a_sample, fixed=0):
    """Return a planner whose plans grow with the samples."""
    return lambda samples: SimpleNamespace(
        arena_bytes=fixed + bytes_a_sample * samples, naive_bytes=naive_a_sample * samples
    )


@pytest.mark.parametrize(
    ("arena", "batch", "count"),
    [(25, 64, 1), (26, 64, 2), (50, 64, 2), (51, 64, 3), (76, 64, 4), (100, 64, 4), (50, 3, 3)],
)
def test_a_batch_has_as_few_pieces_as_take_a_quarter(arena, batch, count):
    assert pieces(plans(arena, 100), batch) == count


@pytest.mark.parametrize(("budget", "count"), [(0, 2), (320, 2), (319, 3), (50, 16), (10, 64)])
def test_a_budget_makes_more_pieces(budget, count):
    assert pieces(plans(10, 20), 64, budget_bytes=budget) == count


def test_as_many_pieces_are_tried_as_there_are_samples():
    assert pieces(plans(10, 20), 7, budget_bytes=10) == 7


@pytest.mark.parametrize(("budget", "count"), [(0, 1), (1030, 3)])
def test_memory_that_is_not_of_samples_makes_no_more_pieces_than_the_budget(budget, count):
    assert pieces(plans(10, 20, fixed=1000), 8, budget_bytes=budget) == count


def test_a_budget_below_one_sample_is_refused():
    with pytest.raises(ConfigError, match=r"got 2 KiB, but .* take 4 KiB with one record at"):
        pieces(plans(4096, 8192), 16, budget_bytes=2048)


class TimeFirst:
    """Tokens and labels (T, N) to scores (T, N, 5); a loss for each of N."""

    def __init__(self):
        self.parameters = parameters({"table": (9, 8), "w": (5, 8)})

    def net(self, x):
        rows = ops.take(self.parameters["table"].data(), x)
        past = ops.tanh(rows + ops.sum(rows, axis=0, keepdims=True))
        return ops.dense(past, self.parameters["w"].data())

    @property
    def objective(self):
        def loss(outputs, labels):
            return ops.sum(ops.softmax_cross_entropy(outputs, labels), axis=0)

        return Objective(self.net, loss, count_correct)


def cases():
    rng = np.random.default_rng(5)
    time_first = rng.integers(9, size=(4, 7)), rng.integers(5, size=(4, 7))
    dense, images = batches([(11, 6)])[0], batches([(7, 6, 5, 2)])[0]
    return {
        "dense": (mlp(), *dense, 0),
        "images": (convnet(), *images, 0),
        "time first": (TimeFirst(), *time_first, 1),
    }


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("kind", cases())
def test_pieces_give_the_numbers_of_the_whole_batch(kind, samples):
    model, x, y, axis = cases()[kind]
    leaves = [p.data() for p in model.parameters.values()]
    specs = [of_samples([Spec.of(a)], samples, axis) for a in (x, y)]
    plan = evaluation_plan(StepDefinition(model.objective, specs, leaves))
    state = ModelState(model.parameters, SGD())
    run = Evaluator(model.objective, state, budget=plan.arena_bytes, batch_axis=axis)
    count = x.shape[axis]

    loss_sum, correct, outputs = run(Work([x], [y], count, count))
    again = run(Work([x], [y], count, count))

    losses, right, expected = model.objective([Tensor(x)], [Tensor(y)])
    np.testing.assert_allclose(outputs, expected.asnumpy(), rtol=1e-12, atol=1e-12)
    assert loss_sum == pytest.approx(losses.asnumpy().sum(), rel=1e-12)
    assert correct == float(right.asnumpy())
    np.testing.assert_array_equal(again[2], outputs)
    assert again[:2] == (loss_sum, correct)
    assert run.working_bytes <= plan.arena_bytes


def test_shapes_are_planned_once():
    model = mlp()
    run = Evaluator(model.objective, ModelState(model.parameters, SGD()))
    first, second = batches([(12, 6), (12, 6)])
    run(Work([first[0]], [first[1]], 12, 12))
    planned = run.plans_made

    run(Work([second[0]], [second[1]], 12, 12))

    assert 0 < planned == run.plans_made
