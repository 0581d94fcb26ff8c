"""Softmax along any axis and cross entropy, and what they refuse."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor
from hpctrain.errors import ShapeError

pytestmark = pytest.mark.serial


def random(*shape, dtype=np.float64):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 50_000, 2), (300, 7, 40)])
def test_softmax_adds_up_to_one_along_its_axis(shape, axis):
    x = random(*shape) * 30

    y = ops.softmax(Tensor(x), axis).asnumpy()
    z = ops.log_softmax(Tensor(x), axis).asnumpy()

    np.testing.assert_allclose(y.sum(axis), 1, rtol=1e-12)
    np.testing.assert_allclose(np.exp(z), y, rtol=1e-12)


def test_cross_entropy_of_many_rows_is_that_of_log_softmax():
    x = random(501, 307)
    labels = np.arange(501) % 307

    loss = ops.softmax_cross_entropy(Tensor(x), Tensor(labels)).asnumpy()

    want = -ops.log_softmax(Tensor(x)).asnumpy()[np.arange(501), labels]
    np.testing.assert_allclose(loss, want, rtol=1e-11)


@pytest.mark.parametrize(
    ("call", "say"),
    [
        (lambda x: ops.softmax_cross_entropy(x, Tensor(np.array([1]))), "labels"),
        (lambda x: ops.softmax_cross_entropy(x, x[:1]), "probabilities"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(call, say):
    with pytest.raises(ShapeError, match=say):
        call(Tensor(np.ones((2, 3))))
