"""Dropout: the stream is state that moves on, and only in training."""

import numpy as np
import pytest

from hpctrain import nn
from hpctrain.autograd import Tensor, backward, record, train_mode
from hpctrain.errors import ConfigError

pytestmark = pytest.mark.serial

ONES = np.ones((40, 50), np.float32)


def made(rate=0.25, seed=0, **args):
    net = nn.Dropout(rate, **args)
    return net.initialize(seed=seed)


def test_inference_changes_nothing():
    net, x = made(), Tensor(ONES)

    assert net(x) is x
    assert net.stream.data().asnumpy()[1] == 0


def test_training_drops_a_share_and_keeps_the_mean():
    with train_mode():
        y = made()(Tensor(ONES)).asnumpy()

    assert set(np.unique(y)) == {0, np.float32(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.04


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybrid"])
def test_each_call_draws_anew_and_a_restored_stream_repeats(hybrid):
    net, x = made(), Tensor(ONES)
    net.hybridize(hybrid)
    with train_mode():
        first = net(x).asnumpy()
        state = net.stream.data().asnumpy().copy()
        second = net(x).asnumpy()
        net.stream.set_data(state)
        again = net(x).asnumpy()

    assert state[1] == 1
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(second, again)


def test_eager_and_captured_draw_the_same():
    eager, captured = made(), made()
    captured.hybridize()
    with train_mode():
        for _ in range(3):
            np.testing.assert_array_equal(
                eager(Tensor(ONES)).asnumpy(), captured(Tensor(ONES)).asnumpy()
            )


def test_parts_of_a_batch_draw_what_the_whole_draws():
    whole, part = made(), made()
    state = part.stream.data().asnumpy().copy()
    state[2] = 15
    part.stream.set_data(state)

    with train_mode():
        expected = whole(Tensor(ONES)).asnumpy()[15:]
        found = part(Tensor(ONES[15:])).asnumpy()

    np.testing.assert_array_equal(found, expected)


def test_the_gradient_goes_where_the_elements_went():
    net, x = made(), Tensor(ONES)
    x.attach_grad()

    with record():
        y = net(x)
    backward(y)

    np.testing.assert_array_equal(x.grad.asnumpy(), y.asnumpy())


def test_streams_of_different_layers_differ():
    net = nn.Sequential()
    net.add(nn.Dropout(0.5), nn.Dropout(0.5))
    net.initialize()

    assert net[0].stream.data().asnumpy()[0] != net[1].stream.data().asnumpy()[0]


def test_the_rate_is_a_share():
    with pytest.raises(ConfigError, match=r"got rate 1\.0"):
        nn.Dropout(1.0)
