"""Softmax along any axis and cross entropy, and what they refuse."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor, grad, record
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


def entropy_and_gradient(x, labels):
    tensor = Tensor(x)
    tensor.attach_grad()
    with record():
        loss = ops.softmax_cross_entropy(tensor, Tensor(labels))
    return loss.asnumpy(), grad(loss, tensor)[0].asnumpy()


def wanted(x, labels):
    x, rows = x.astype(np.float64), np.arange(len(x))
    log_p = x - x.max(1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    gradient = np.exp(log_p)
    gradient[rows, labels] -= 1
    return -log_p[rows, labels], gradient


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1, 30, 1000])
@pytest.mark.parametrize("offset", [0, 43, -43, 47, -47, 90, -90, 800, -800])
def test_cross_entropy_holds_for_logits_of_any_size(dtype, scale, offset):
    x = (random(37, 50) * scale + offset).astype(dtype)
    labels = np.arange(37) % 50

    got = entropy_and_gradient(x, labels)

    for have, want in zip(got, wanted(x, labels), strict=True):
        size = max(1, np.abs(x).max())
        np.testing.assert_allclose(have, want, rtol=0, atol=4 * np.finfo(dtype).eps * size)


def test_a_small_cross_entropy_keeps_its_digits():
    x = np.zeros((5, 10), np.float32)
    x[np.arange(5), np.arange(5)] = np.linspace(10, 16, 5)

    loss = entropy_and_gradient(x, np.arange(5))[0]

    np.testing.assert_allclose(loss, wanted(x, np.arange(5))[0], rtol=0, atol=3e-7)


def test_the_bits_of_a_row_do_not_depend_on_the_others():
    x = random(23, 9001, dtype=np.float32)
    x[[3, 9]] *= 100
    labels = np.arange(23)

    whole = entropy_and_gradient(x, labels)

    for row in range(23):
        alone = entropy_and_gradient(x[row : row + 1].copy(), labels[row : row + 1])
        for have, want in zip(alone, whole, strict=True):
            np.testing.assert_array_equal(have[0], want[row])


def test_what_is_not_finite_stays_so_in_its_row():
    x = np.zeros((4, 3))
    x[0, 0], x[1, 1], x[2, 2] = np.nan, -np.inf, 3

    loss = ops.softmax_cross_entropy(Tensor(x), Tensor(np.array([0, 1, 2, 2]))).asnumpy()

    np.testing.assert_allclose(loss, [np.nan, np.inf, np.log(1 + 2 * np.exp(-3)), np.log(3)])
