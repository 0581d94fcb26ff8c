"""Movement: what shares memory, and what is refused."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor
from hpctrain.errors import ShapeError

pytestmark = pytest.mark.serial


def x345():
    return Tensor(np.arange(60.0).reshape(3, 4, 5))


@pytest.mark.parametrize(
    "move",
    [
        lambda x: ops.reshape(x, (12, 5)),
        lambda x: ops.transpose(x),
        lambda x: ops.broadcast_to(x, (2, 3, 4, 5)),
        lambda x: ops.flip(x, 1),
        lambda x: ops.expand_dims(x, 0),
        lambda x: x[1:, ..., 2],
        lambda x: x[0, 0, 0],
        lambda x: ops.split(x, 2, axis=1)[1],
        lambda x: ops.transpose(x)[1:].reshape(4, 4, 3),
    ],
)
def test_views_share_memory(move):
    x = x345()

    assert np.shares_memory(move(x).asnumpy(), x.asnumpy())


@pytest.mark.parametrize(
    "copy", [lambda x: ops.identity(x), lambda x: ops.transpose(x).reshape(-1)]
)
def test_copies_share_none(copy):
    x = x345()

    assert not np.shares_memory(copy(x).asnumpy(), x.asnumpy())


@pytest.mark.parametrize(
    ("call", "say"),
    [
        (lambda x: ops.reshape(x, (7, -1)), "reshape: got float64"),
        (lambda x: ops.reshape(x, (-1, -1)), "reshape"),
        (lambda x: ops.reshape(x, (2, 2)), "as many elements"),
        (lambda x: ops.transpose(x, (0, 0, 1)), "each axis once"),
        (lambda x: ops.transpose(x, (0, 1, 5)), "axis 5"),
        (lambda x: ops.broadcast_to(x, (3, 4, 6)), "broadcast"),
        (lambda x: ops.broadcast_to(x, (5,)), "broadcast"),
        (lambda x: ops.squeeze(x, 1), "length 1"),
        (lambda x: ops.concat([x, x[:2, :2]], 0), "equal lengths"),
        (lambda x: ops.concat([]), "at least one"),
        (lambda x: ops.split(x, 7), "parts that add up to 3"),
        (lambda x: ops.pad(x, ((1, 1),)), "two widths"),
        (lambda x: ops.sum_to(x, (2, 5)), "sum_to"),
        (lambda x: x[3], "slice"),
        (lambda x: x[::-1], "step"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(call, say):
    with pytest.raises(ShapeError, match=say):
        call(x345())


def test_concat_promotes_dtypes():
    a, b = Tensor(np.ones(2, np.float32)), Tensor(np.ones(2))

    assert ops.concat([a, b]).dtype == np.float64


def test_empty_tensors_move():
    x = Tensor(np.zeros((0, 4), np.float32))

    assert ops.reshape(x, (4, 0)).shape == (4, 0)
    assert ops.concat([x, Tensor(np.ones((2, 4), np.float32))]).shape == (2, 4)
    assert ops.pad(x, ((1, 0), (0, 0))).shape == (1, 4)
