"""Pooling of oneDNN against that of NumPy, on random shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_kernels import compare, kernels, needs_dnnl, run, run_bound

from hpctrain.autograd import Spec, primitive

pytestmark = [pytest.mark.serial, needs_dnnl]


@st.composite
def poolings(draw):
    """Return the shape of x and attributes."""
    axes = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 4)) for _ in range(axes)]
    padding = [(draw(st.integers(0, k - 1)), draw(st.integers(0, k - 1))) for k in kernel]
    size = [draw(st.integers(k, k + 8)) for k in kernel]
    stride = [draw(st.integers(1, 4)) for _ in range(axes)]
    shape = (draw(st.integers(1, 3)), *size, draw(st.integers(1, 40)))
    return shape, {
        "kernel": tuple(kernel), "stride": tuple(stride), "padding": tuple(padding)
    }  # fmt: skip


def numbers(rng, shape, many=False):
    """Return float32 numbers; few different ones unless ``many``, so that some are equal."""
    drawn = rng.standard_normal(shape) if many else rng.integers(-3, 4, shape)
    return drawn.astype(np.float32)


@given(case=poolings(), seed=st.integers(0, 999))
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_maxima_and_their_places_are_those_of_numpy(case, seed):
    (shape, attrs), rng = case, np.random.default_rng(seed)

    y, index = compare("max_pool", [numbers(rng, shape)], limit=0, **attrs)
    dy = numbers(rng, y.shape, many=True)
    compare("max_pool_grad", [dy, index], size=shape[1:-1], **attrs)


@given(case=poolings(), include=st.booleans(), seed=st.integers(0, 999))
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_means_are_those_of_numpy(case, include, seed):
    (shape, attrs), rng = case, np.random.default_rng(seed)
    x = numbers(rng, shape, many=True)
    (y,) = primitive("avg_pool").infer([Spec.of(x)], include=include, **attrs)

    compare("avg_pool", [x], include=include, **attrs)
    dy = numbers(rng, y.shape, many=True)
    compare("avg_pool_grad", [dy], size=shape[1:-1], include=include, **attrs)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("way", [run, run_bound])
def test_numbers_that_are_not_finite_count_as_in_numpy(odd, way):
    x = np.arange(4 * 4 * 16, dtype=np.float32).reshape(1, 4, 4, 16)
    x[0, 1, 1, :3] = x[0, :2, :2, 5] = x[0, 2, 2, 4] = odd
    attrs = {"kernel": (2, 2), "stride": (2, 2), "padding": ((0, 0), (0, 0))}

    have = way("max_pool", [x], **attrs)

    with kernels("numpy"):
        want = run("max_pool", [x], **attrs)
    for a, b in zip(have, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_places_in_a_large_window_are_numbers_of_four_bytes():
    x = numbers(np.random.default_rng(1), (1, 300, 16), many=True)
    attrs = {"kernel": (290,), "stride": (1,), "padding": ((0, 0),)}

    _, index = compare("max_pool", [x], limit=0, **attrs)

    assert index.dtype == np.int32
