"""Clipping by the global norm, whole and in parts."""

import math

import numpy as np
import pytest

from hpctrain import optim
from hpctrain.errors import ConfigError

pytestmark = pytest.mark.serial


def test_the_squares_of_parts_add_up_to_those_of_the_whole():
    grad = np.random.default_rng(0).standard_normal(200_003).astype(np.float32)
    parts = [optim.sum_of_squares(grad[:70_001]), optim.sum_of_squares(grad[70_001:])]

    expected = float(np.sum(grad.astype(np.float64) ** 2))

    assert optim.sum_of_squares(grad) == pytest.approx(expected, rel=1e-5)
    assert sum(parts) == pytest.approx(expected, rel=1e-5)
    assert optim.sum_of_squares(grad[:0]) == 0


def test_the_clipped_gradient_has_the_largest_norm_allowed():
    grad = np.array([30.0, 40.0])

    scale = optim.clip_scale(optim.sum_of_squares(grad), max_norm=2.0, scale=0.1)

    assert np.linalg.norm(grad * scale) == pytest.approx(2.0)


def test_a_small_gradient_is_left_alone():
    assert optim.clip_scale(25.0, max_norm=2.0, scale=0.25) == 0.25


@pytest.mark.parametrize("squares", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_cannot_be_missed(squares):
    assert math.isnan(optim.clip_scale(squares, max_norm=1.0))


def test_the_limit_is_positive():
    with pytest.raises(ConfigError, match="max_norm 0"):
        optim.clip_scale(1.0, max_norm=0)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 65_535, 65_536, 100_000])
def test_finite_finds_the_one_element_that_is_not(bad, place):
    grad = np.full(100_001, 1e30, np.float32)
    assert optim.finite(grad)

    grad[place] = bad

    assert not optim.finite(grad)
    assert optim.finite(grad[:place]) and optim.finite(grad[place + 1 :])
