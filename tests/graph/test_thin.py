"""Sums of thin products: NumPy's numbers, whatever is kept and added at a time."""

import importlib.util
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctrain.graph import thin, threads
from hpctrain.graph.thin import ThinProducts

pytestmark = [
    pytest.mark.serial,
    pytest.mark.usefixtures("own_cache"),
    pytest.mark.skipif(importlib.util.find_spec("llvmlite") is None, reason="no llvmlite"),
]


def factors(shape, count, seed=0):
    """Return factors, of strides that are not those of a whole array, and sums before."""
    rng, (terms, rows, columns) = np.random.default_rng(seed), shape
    left = rng.standard_normal((count, terms, rows + 1)).astype(np.float32)[..., 1:]
    right = rng.standard_normal((count, columns, terms)).astype(np.float32).swapaxes(1, 2)
    return left, right, rng.standard_normal(rows * columns)


def added(shape, pairs, sums, edges=(), slots=4):
    """Add the products of all pairs, ``slots`` at a time, to one part after another."""
    products, sums = ThinProducts(*shape, slots), sums.copy()
    for number, pair in enumerate(pairs, 1):
        products.keep(*pair)
        if products.count == slots or number == len(pairs):
            for a, b in pairwise((0, *edges, len(sums))):
                products.add(sums[a:b], (a, b))
            products.count = 0
    return sums


@settings(max_examples=12, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 12), st.integers(1, 150)),
    count=st.integers(1, 6),
    cuts=st.lists(st.floats(0, 1), max_size=4),
)
def test_products_are_rounded_and_added_in_twice_the_precision(shape, count, cuts):
    left, right, sums = factors(shape, count)
    pairs = list(zip(left, right, strict=True))
    exact = left.astype(float).swapaxes(1, 2) @ right.astype(float)

    found = added(shape, pairs, sums)
    edges = sorted(int(cut * len(sums)) for cut in cuts)

    size = (np.abs(left).swapaxes(1, 2) @ np.abs(right)).sum(0).reshape(-1)
    assert (np.abs(found - sums - exact.sum(0).reshape(-1)) <= 1e-6 * size + 1e-15).all()
    # One after the other, and cut anywhere, they are the same bits.
    np.testing.assert_array_equal(added(shape, pairs, sums, edges, slots=1), found)


def test_one_term_is_a_product_that_is_rounded_once():
    left, right, sums = factors((1, 5, 90), 3)
    want = sums.reshape(5, 90).copy()
    for a, b in zip(left, right, strict=True):
        want += a.T * b

    np.testing.assert_array_equal(
        added((1, 5, 90), list(zip(left, right, strict=True)), sums), want.reshape(-1)
    )


def test_what_is_not_a_number_stays_in_its_row_or_column():
    left, right, sums = factors((2, 3, 70), 2)
    left[1, 0, 2], right[0, 1, 64] = np.nan, np.inf

    found = added((2, 3, 70), list(zip(left, right, strict=True)), sums).reshape(3, 70)

    assert np.isnan(found[2]).all() and not np.isfinite(found[:, 64]).any()
    assert np.isfinite(np.delete(found[:2], 64, 1)).all()


def test_threads_change_no_bit(monkeypatch):
    left, right, sums = factors((2, 30, 70), 3)
    pairs = list(zip(left, right, strict=True))
    one = added((2, 30, 70), pairs, sums)

    monkeypatch.setattr(thin, "_WORTH", 64)
    threads.limit(2)
    try:
        np.testing.assert_array_equal(added((2, 30, 70), pairs, sums), one)
    finally:
        threads.limit(1)
