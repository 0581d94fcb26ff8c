"""Dropout: the same masks however a batch is divided, and the right number of zeros."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor
from hpctrain.errors import ShapeError

pytestmark = pytest.mark.serial


def stream(key=1, counter=0, row=0):
    return Tensor(np.array([key, counter, row], np.uint64))


def mask_of(shape, rate=0.4, axis=0, **where):
    x = Tensor(np.ones(shape, np.float32))
    return ops.dropout(x, stream(**where), rate, axis)[1].asnumpy()


@pytest.mark.parametrize("inner", [(1,), (7,), (8,), (3, 5)])
def test_parts_of_a_batch_draw_the_masks_of_the_whole(inner):
    whole = mask_of((12, *inner))

    parts = [mask_of((n, *inner), row=at) for at, n in ((0, 5), (5, 1), (6, 6))]

    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_the_batch_may_be_any_axis():
    whole = mask_of((4, 6, 5), axis=1)

    parts = [mask_of((4, 3, 5), axis=1, row=row) for row in (0, 3)]

    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    np.testing.assert_array_equal(whole.transpose(1, 0, 2), mask_of((6, 4, 5)))


def test_many_blocks_draw_what_each_row_draws_alone():
    whole = mask_of((40, 5001))

    for row in (0, 1, 13, 39):
        np.testing.assert_array_equal(mask_of((1, 5001), row=row)[0], whole[row])


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_the_rate_is_right(rate):
    n = 200_000
    kept = mask_of((n // 1000, 1000), rate=rate).sum()

    assert abs(kept - n * (1 - rate)) <= 5 * np.sqrt(n * rate * (1 - rate))


def test_key_counter_and_row_each_change_the_mask():
    masks = [
        mask_of((64, 64)), mask_of((64, 64), key=2), mask_of((64, 64), counter=1),
        mask_of((64, 64), row=1),
    ]  # fmt: skip

    for i, mask in enumerate(masks):
        for other in masks[:i]:
            # Independent masks agree with probability 0.4² + 0.6² = 0.52.
            assert abs((mask == other).mean() - 0.52) < 0.05
    assert not (mask_of((64, 64)) != masks[0]).any()


def test_kept_elements_are_scaled_so_that_the_mean_stays():
    x = Tensor(np.full((50, 100), 3.0, np.float32))

    y, mask = ops.dropout(x, stream(), 0.25)

    np.testing.assert_allclose(y.asnumpy(), np.where(mask.asnumpy(), 4.0, 0.0), rtol=1e-6)
    assert y.dtype == np.float32


def test_an_infinity_that_is_dropped_is_zero():
    x = Tensor(np.full((50, 100), np.inf, np.float32))

    y, mask = ops.dropout(x, stream(), 0.5)

    np.testing.assert_array_equal(y.asnumpy(), np.where(mask.asnumpy(), np.inf, 0))


def test_advance_counts_calls():
    after = ops.advance(stream(3, 4, 5))

    assert after.asnumpy().tolist() == [3, 5, 5]


def test_a_large_key_and_counter_are_taken_whole():
    top = 2**64 - 1

    assert mask_of((8, 8), key=top, counter=top, row=2**40).shape == (8, 8)


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_out_of_range_is_refused(rate):
    with pytest.raises(ShapeError, match="rate"):
        ops.dropout(Tensor(np.ones((2, 3))), stream(), rate)


def test_a_stream_of_another_form_is_refused():
    with pytest.raises(ShapeError, match="stream"):
        ops.dropout(Tensor(np.ones((2, 3))), Tensor(np.array([1, 2, 3])), 0.5)
