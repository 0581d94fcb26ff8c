"""The walk over blocks."""

import numpy as np
import pytest

from hpctrain.errors import ShapeError
from hpctrain.optim.flat import blocks

pytestmark = pytest.mark.serial


def test_every_element_is_met_once():
    weight = np.zeros(50_001, np.float32)

    for block in blocks(weight, weight.copy(), []):
        block.weight += 1

    np.testing.assert_array_equal(weight, 1)


def test_the_callers_gradient_is_not_written():
    grad = np.ones(10)

    for block in blocks(np.ones(10), grad, []):
        block.scale(3, 2)
        block.add(block.weight, 5)
        np.testing.assert_array_equal(block.grad, 7)

    np.testing.assert_array_equal(grad, 1)


def test_an_empty_slice_has_no_blocks():
    assert list(blocks(np.zeros(0), np.zeros(0), [])) == []


def test_matrices_are_refused():
    with pytest.raises(ShapeError, match="two flat arrays"):
        list(blocks(np.zeros((2, 2)), np.zeros((2, 2)), []))
