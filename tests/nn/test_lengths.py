"""Recurrent layers over sequences of unequal length, against each sequence alone."""

import numpy as np
import pytest

from hpctrain import nn
from hpctrain.autograd import Tensor, backward, record

pytestmark = pytest.mark.serial
LENGTHS = (3, 6, 1, 4)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_without_a_real_step_states_stay(kind):
    net = kind(5, 2, input_size=3).initialize(nn.initializer.Normal(0.7), seed=2)
    x = Tensor(np.ones((4, 2, 3), np.float32))
    states = [s + 0.25 for s in net.begin_state(2, x)]

    y, new = net(x, states, Tensor(np.array([0, 4])))

    assert not y.asnumpy()[:, 0].any()
    for before, after in zip(states, new, strict=True):
        np.testing.assert_array_equal(after.asnumpy()[:, 0], before.asnumpy()[:, 0])
        assert (after.asnumpy()[:, 1] != before.asnumpy()[:, 1]).all()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybrid"])
def test_padding_changes_nothing(kind, dtype, hybrid):
    rng = np.random.default_rng(5)
    net = kind(5, 2, input_size=3).initialize(nn.initializer.Normal(0.7), seed=2)
    net.cast(dtype)
    net.hybridize(hybrid)
    x = (rng.standard_normal((6, 4, 3)) * 3).astype(dtype)
    for n, length in enumerate(LENGTHS):
        x[length:, n] = 50 + n
    together = Tensor(x)
    together.attach_grad()

    with record():
        y, states = net(together, net.begin_state(4, together), Tensor(np.array(LENGTHS)))
    backward([y, *states])

    weights = {name: p.grad().asnumpy().copy() for name, p in net.collect_params().items()}
    sums = dict.fromkeys(weights, 0)
    near = (
        {"rtol": 2e-5, "atol": 2e-5} if dtype == "float32" else {"rtol": 1e-11, "atol": 1e-11}
    )
    for n, length in enumerate(LENGTHS):
        alone = Tensor(x[:length, n : n + 1].copy())
        alone.attach_grad()
        with record():
            z, last = net(alone, net.begin_state(1, alone))
        backward([z, *last])
        np.testing.assert_allclose(y.asnumpy()[:length, n], z.asnumpy()[:, 0], **near)
        assert not y.asnumpy()[length:, n].any()
        for have, want in zip(states, last, strict=True):
            np.testing.assert_allclose(have.asnumpy()[:, n], want.asnumpy()[:, 0], **near)
        np.testing.assert_allclose(
            together.grad.asnumpy()[:length, n], alone.grad.asnumpy()[:, 0], **near
        )
        assert not together.grad.asnumpy()[length:, n].any()
        for name, p in net.collect_params().items():
            sums[name] = sums[name] + p.grad().asnumpy()
    for name, want in sums.items():
        np.testing.assert_allclose(weights[name], want, **near)
