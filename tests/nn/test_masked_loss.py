"""The mean over real steps, against NumPy in float64."""

import numpy as np
import pytest

from hpctrain.autograd import Tensor, check_gradients, grad, record
from hpctrain.nn import MaskedSoftmaxCELoss

pytestmark = pytest.mark.serial
LENGTHS = np.array([4, 1, 0])


def made(axis):
    rng = np.random.default_rng(2)
    pred, label = rng.standard_normal((4, 3, 5)), rng.integers(0, 5, (4, 3))
    for n, length in enumerate(LENGTHS):
        label[length:, n] = -1
    return pred.swapaxes(0, 1 - axis), label.swapaxes(0, 1 - axis)


def expected(pred, label, axis):
    pred, label = pred.swapaxes(0, 1 - axis), label.swapaxes(0, 1 - axis)
    logs = pred - np.log(np.exp(pred).sum(-1, keepdims=True))
    return [
        -np.mean([logs[t, n, label[t, n]] for t in range(length)]) if length else 0.0
        for n, length in enumerate(LENGTHS)
    ]


@pytest.mark.parametrize("axis", [0, 1])
def test_each_sample_counts_once_and_padding_not(axis):
    pred, label = made(axis)
    loss = MaskedSoftmaxCELoss(batch_axis=axis)

    want = expected(pred, label, axis)

    np.testing.assert_allclose(loss(Tensor(pred), Tensor(label)).asnumpy(), want, 1e-13)
    wild = np.where(label < 0, 3, label).astype(np.float32)  # lengths say what is real
    have = loss(Tensor(pred), Tensor(wild), Tensor(LENGTHS)).asnumpy()
    np.testing.assert_allclose(have, want, 1e-13)
    check_gradients(loss, [pred, label])


def test_padding_has_no_gradient():
    pred, label = made(1)
    tensor = Tensor(pred)
    tensor.attach_grad()

    with record():
        y = MaskedSoftmaxCELoss(batch_axis=1)(tensor, Tensor(label))
    (found,) = grad(y, tensor)

    has = (found.asnumpy() != 0).any(-1)
    np.testing.assert_array_equal(has, label >= 0)
