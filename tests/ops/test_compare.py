"""Comparisons and choices: bits, dtypes, and what they refuse."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor
from hpctrain.errors import ShapeError

pytestmark = pytest.mark.serial


def test_where_takes_bits_as_they_are():
    a = Tensor(np.array([np.nan, 1, np.inf, -0.0], np.float32))
    b = Tensor(np.array([1, np.inf, np.nan, 5], np.float32))
    mask = Tensor(np.array([True, False, False, True]))

    y = ops.where(mask, a, b).asnumpy()

    np.testing.assert_array_equal(y, [np.nan, np.inf, np.nan, -0.0])
    assert np.signbit(y[3])


def test_where_mixes_dtypes_and_broadcasts():
    y = ops.where(Tensor(np.array([[True], [False]])), Tensor(np.arange(3)), 7)

    assert y.asnumpy().tolist() == [[0, 1, 2], [7, 7, 7]]
    assert y.dtype == np.int64


@pytest.mark.parametrize(
    ("call", "say"),
    [
        (lambda x: ops.where(x, x, x), "bool"),
        (lambda x: ops.clip(x, 2, 1), "low <= high"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(call, say):
    with pytest.raises(ShapeError, match=say):
        call(Tensor(np.ones((2, 3))))
