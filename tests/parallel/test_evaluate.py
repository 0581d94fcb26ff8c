"""Evaluation: whole batches or parts of them give the same sums."""

import numpy as np
import pytest
from replicas import batches, convnet, mlp, share

from hpctrain import ops
from hpctrain.autograd import Tensor
from hpctrain.optim import SGD
from hpctrain.parallel.evaluate import Evaluator
from hpctrain.parallel.state import ModelState


def evaluator(model):
    return Evaluator(model.objective, ModelState(model.parameters, SGD()))


@pytest.mark.parametrize("size", [1, 5, 9])
def test_the_parts_of_a_batch_add_up_to_eager_execution(world, size):
    model = convnet()
    x, y = batches([(size, 6, 5, 2)])[0]
    outputs = model.net(Tensor(x)).asnumpy()
    losses = ops.softmax_cross_entropy(Tensor(outputs), Tensor(y)).asnumpy()
    run, work = evaluator(model), share((x, y), world)
    sums = np.zeros(3)

    if work.count:
        loss_sum, correct, mine = run(work)
        sums[:] = loss_sum, correct, work.count
        np.testing.assert_allclose(mine, outputs[work.row : work.row + work.count], rtol=1e-10)
    world.allreduce(sums)

    assert sums[0] == pytest.approx(losses.sum(), rel=1e-10)
    assert sums[1:].tolist() == [(outputs.argmax(-1) == y).sum(), size]


def test_results_stay_when_the_next_batch_is_evaluated(world):
    run = evaluator(mlp())
    first, second = (share(b, world) for b in batches([(4 * world.size, 6)] * 2))

    outputs = run(first)[2]
    kept = outputs.copy()
    run(second)

    np.testing.assert_array_equal(outputs, kept)


def test_parameters_are_seen_as_they_are_now(world):
    model = mlp()
    run = evaluator(model)
    work = share(batches([(world.size, 6)])[0], world)
    run(work)
    model.tensor("w3").array[...] = 0
    model.tensor("b3").array[...] = 0

    loss_sum, _, outputs = run(work)

    np.testing.assert_array_equal(outputs, 0)
    assert loss_sum == pytest.approx(work.count * np.log(5))


def test_dropout_is_left_out(world):
    work = share(batches([(world.size, 6)])[0], world)

    plain, dropped = evaluator(mlp())(work), evaluator(mlp(0.5))(work)

    np.testing.assert_array_equal(plain[2], dropped[2])
