"""Random shifts, against a loop over records."""

import numpy as np
import pytest

from hpctrain.errors import ShapeError
from hpctrain.io import RandomShift
from hpctrain.io.augment import random_bits

pytestmark = pytest.mark.serial


def images(n):
    return np.random.default_rng(n).random((n, 9, 7, 2), np.float32) + 1


def shifted(image, down, right, fill):
    out = np.full_like(image, fill)
    rows, columns, _ = image.shape
    for row in range(rows):
        for column in range(columns):
            if 0 <= row - down < rows and 0 <= column - right < columns:
                out[row, column] = image[row - down, column - right]
    return out


def test_each_record_moves_by_its_own_amount():
    ids, shift = np.arange(30) * 7, RandomShift(3, seed=5, fill=-1)
    before, after = images(30), images(30)

    shift({"image": after}, ids, 2)

    down, right = shift.amounts(ids, 2)
    for k in range(30):
        np.testing.assert_array_equal(after[k], shifted(before[k], down[k], right[k], -1))


def test_a_record_moves_the_same_way_in_any_batch():
    ids, shift = np.random.default_rng(0).permutation(40), RandomShift(2)
    whole = {"image": images(40), "label": np.arange(40)}
    parts = images(40)

    shift(whole, ids, 1)
    for rank in range(3):
        shift({"image": parts[rank::3]}, ids[rank::3], 1)

    np.testing.assert_array_equal(whole["image"], parts)
    np.testing.assert_array_equal(whole["label"], np.arange(40))


def test_amounts_are_evenly_spread_and_change_with_epoch_and_seed():
    ids = np.arange(50_000)

    down, right = RandomShift(2, seed=1).amounts(ids, 0)

    for amounts in (down, right):
        # Binomial with mean 10,000 and deviation 89; five deviations.
        assert abs(np.bincount(amounts + 2, minlength=5) - 10_000).max() < 450
    assert abs(np.corrcoef(down, right)[0, 1]) < 0.03
    assert abs(np.corrcoef(down[1:], down[:-1])[0, 1]) < 0.03
    assert (down != RandomShift(2, seed=1).amounts(ids, 1)[0]).any()
    assert (down != RandomShift(2, seed=2).amounts(ids, 0)[0]).any()


def test_bits_are_balanced():
    bits = np.unpackbits(random_bits(np.arange(20_000), 0, 0, 0).view(np.uint8)).reshape(-1, 64)

    assert abs(bits.mean(axis=0) - 0.5).max() < 0.02


def test_fields_that_are_no_images_are_refused_or_left_alone():
    wave = np.ones((3, 4))

    RandomShift(1)({"wave": wave}, np.arange(3), 0)
    with pytest.raises(ShapeError, match="wave"):
        RandomShift(1, fields=["wave"])({"wave": wave}, np.arange(3), 0)
