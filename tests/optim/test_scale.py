"""The loss scale: constant, or after what the gradients can bear."""

import pytest

from hpctrain.errors import ConfigError
from hpctrain.optim import LossScale

pytestmark = pytest.mark.serial


def test_a_constant_scale_stays_and_counts():
    scale = LossScale(8.0)
    for good in (True, False, True):
        scale.update(good)

    assert (scale.value, scale.skipped) == (8.0, 1)


def test_bad_steps_halve_it_and_good_ones_in_a_row_double_it():
    scale, seen = LossScale(8.0, dynamic=True, interval=3), []
    for good in (True, True, False, True, True, True, False, False):
        scale.update(good)
        seen.append(scale.value)

    assert seen == [8, 8, 4, 4, 4, 8, 4, 2]
    assert scale.skipped == 3


def test_it_has_a_floor_and_a_ceiling():
    low, high = LossScale(2.0**-14, True), LossScale(2.0**24, True, interval=1)
    low.update(good=False)
    high.update(good=True)

    assert (low.value, high.value) == (2.0**-14, 2.0**24)


def test_it_goes_on_as_it_was():
    scale = LossScale(8.0, True, interval=3)
    for good in (False, True, True):
        scale.update(good)
    other = LossScale(1.0, True, interval=3)
    other.load(scale.plain())
    constant = LossScale(2.0)
    constant.load(scale.plain())

    assert other == scale
    assert (constant.value, constant.skipped) == (2.0, 1)


@pytest.mark.parametrize(("value", "interval"), [(0.0, 1), (-1.0, 1), (2.0**25, 1), (1.0, 0)])
def test_what_cannot_be_is_refused(value, interval):
    with pytest.raises(ConfigError, match="loss scale: got"):
        LossScale(value, interval=interval)
