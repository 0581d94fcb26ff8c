"""Softmax of oneDNN against that of NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_kernels import compare, needs_dnnl, program, run

from hpctrain.autograd import primitive

pytestmark = [pytest.mark.serial, needs_dnnl]
NAMES = ["softmax", "log_softmax"]


@given(rows=st.integers(1, 9), width=st.integers(1, 90), scale=st.sampled_from([0.1, 3, 30]),
       seed=st.integers(0, 99))  # fmt: skip
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_both_ways_give_what_numpy_gives(rows, width, scale, seed):
    x, dy = np.random.default_rng(seed).standard_normal((2, 2, rows, width), np.float32)
    for name in NAMES:
        (y,) = compare(name, [x * np.float32(scale)], axis=2)
        compare(f"{name}_grad", [y, dy], limit=4e-6, axis=2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("low", [-np.inf, -1e30])
def test_what_is_masked_weighs_nothing(name, low):
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    x[:, 7:21] = low
    x[1] += 3000

    (y,) = compare(name, [x[:, :7].copy()], axis=1)
    (masked,) = run(name, [x], axis=1)

    rest = np.delete(x, slice(7, 21), axis=1)
    np.testing.assert_allclose(
        np.delete(masked, slice(7, 21), axis=1), run(name, [rest], axis=1)[0], atol=4e-6
    )
    want = 0.0 if name == "softmax" else low
    np.testing.assert_allclose(masked[:, 7:21], want, rtol=1e-6)
    assert np.isfinite(y).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_is_not_a_number_is_none_afterwards(name):
    x = np.zeros((3, 20), np.float32)
    x[1, 4] = np.nan

    (y,) = run(name, [x], axis=1)

    assert np.isnan(y[1]).all() and np.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("name", NAMES)
def test_results_may_lie_over_their_inputs(name):
    x, dy = np.random.default_rng(1).standard_normal((2, 5, 70), np.float32)
    (y,) = run(name, [x.copy()], axis=1)
    (dx,) = run(f"{name}_grad", [y.copy(), dy.copy()], axis=1)

    for row, ins, over, want in ((name, [x], 0, y), (f"{name}_grad", [y, dy], 1, dx)):
        given_ = [a.copy() for a in ins]
        scratch = [np.empty(64 + program(row, ins, axis=1).nbytes, np.uint8)]
        primitive(row).kernel(np, given_, [given_[over]], scratch, axis=1)
        np.testing.assert_array_equal(given_[over], want)


def test_other_axes_are_left_to_numpy():
    assert program("softmax", [np.zeros((3, 4, 5), np.float32)], axis=1) is None
