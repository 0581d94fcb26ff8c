"""Reductions: folded sums, dtypes, and what they refuse."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor
from hpctrain.errors import ShapeError

pytestmark = pytest.mark.serial


def random(*shape, dtype=np.float64):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("width", [1, 3, 16, 1100])
@pytest.mark.parametrize("rows", [1, 9, 525])
def test_sums_over_rows_are_right_for_every_width(width, rows):
    x = random(2, rows, width)

    np.testing.assert_allclose(ops.sum(Tensor(x), (0, 1)).asnumpy(), x.sum((0, 1)), atol=1e-10)
    np.testing.assert_allclose(ops.mean(Tensor(x), 1).asnumpy(), x.mean(1), atol=1e-12)
    y = ops.add(Tensor(x), Tensor(x[0, 0]))
    np.testing.assert_array_equal(y.asnumpy(), x + x[0, 0])


def test_whole_numbers_are_summed_in_int64_and_averaged_in_float32():
    hits = Tensor(np.array([True, False, True, True]))

    assert ops.sum(hits).asnumpy() == 3
    assert ops.sum(hits).dtype == np.int64
    assert ops.mean(hits).asnumpy() == np.float32(0.75)
    assert ops.mean(hits).dtype == np.float32


@pytest.mark.parametrize(
    ("call", "say"),
    [
        (lambda x: ops.sum(x, 2), "axis 2"),
        (lambda x: ops.sum(x, (0, -2)), "at most once"),
        (lambda x: ops.max(x[:0], 0), "at least one element"),
        (lambda x: ops.argmax(x[:, :0], 1), "at least one element"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(call, say):
    with pytest.raises(ShapeError, match=say):
        call(Tensor(np.ones((2, 3))))
