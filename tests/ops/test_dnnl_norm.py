"""Normalisation by oneDNN against that by NumPy."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from two_kernels import compare, needs_dnnl, program, run

pytestmark = [pytest.mark.serial, needs_dnnl]


def inputs(shape, offset=0.0, eps=1e-5, seed=1):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) + offset).astype(np.float32)
    gamma, beta = rng.standard_normal((2, shape[-1])).astype(np.float32)
    _, mean, var = run("batch_norm", [x, gamma, beta], eps=eps)
    return [rng.standard_normal(shape).astype(np.float32), x, gamma, mean, var]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 4),
    st.sampled_from([0, 10]), st.sampled_from([1e-5, 1e-3]), st.integers(0, 9),
)  # fmt: skip
@example([1], 1, 0, 1e-5, 0)  # one row, whose variance is 0
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_gradients_are_those_of_numpy(lead, vectors, offset, eps, seed):
    ins = inputs((*lead, 16 * vectors), offset, eps, seed)

    compare("batch_norm_grad", ins, limit=2e-5, eps=eps)


def test_channels_that_do_not_fill_a_vector_are_left_to_numpy():
    assert program("batch_norm_grad", inputs((4, 5, 7)), eps=1e-5) is None


def rows(shape, offset, seed=2):
    rng = np.random.default_rng(seed)
    x, dy = rng.standard_normal((2, *shape)).astype(np.float32)
    gamma, beta = rng.standard_normal((2, shape[-1])).astype(np.float32)
    return dy, x + np.float32(offset), gamma, beta


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(16, 70),
    st.sampled_from([0, 10]), st.sampled_from([1e-5, 1e-3]), st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_rows_and_their_gradients_are_those_of_numpy(lead, channels, offset, eps, seed):
    dy, x, gamma, beta = rows((*lead, channels), offset, seed)

    _, mean, rstd = compare("layer_norm", [x, gamma, beta], limit=2e-5, eps=eps)
    compare("layer_norm_grad", [dy, x, gamma, mean, rstd], limit=2e-5)


def test_short_rows_are_left_to_numpy():
    _, x, gamma, beta = rows((4, 15), 0)

    assert program("layer_norm", [x, gamma, beta], eps=1e-5) is None
