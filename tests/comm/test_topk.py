import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hpctrain.comm.topk import TopK
from hpctrain.errors import ConfigError

pytestmark = pytest.mark.serial

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)

# Few different values: many are equal in magnitude.
COARSE = st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5, 1e-40, 3e38])


def exchange(codec, values, residual=None):
    """Return the bytes and what they are decoded to."""
    data = np.full(codec.nbytes(values.size), 0xA5, np.uint8)
    out = np.full(values.size, 7, np.float32)
    before = values.copy()
    codec.encode(values, data, residual)
    np.testing.assert_array_equal(values, before)
    codec.decode(data, out)
    return data, out


def reference(values, residual, k):
    """Return the indices sent, their values and what is left, from a full sort."""
    sums = [g + r for g, r in zip(values, residual, strict=True)]
    order = sorted(range(len(sums)), key=lambda i: (-abs(sums[i]), i))
    sent = sorted(order[:k])
    left = [np.float32(0) if i in sent else s for i, s in enumerate(sums)]
    return sent, [sums[i] for i in sent], left


@pytest.mark.parametrize("elements", [COARSE, st.floats(-8, 8, width=32)])
@QUICK
@given(data=st.data())
def test_the_largest_are_sent_and_of_equal_ones_the_first(elements, data):
    values = data.draw(arrays(np.float32, st.integers(1, 60), elements=elements))
    residual = data.draw(arrays(np.float32, values.size, elements=elements))
    codec = TopK(data.draw(st.floats(0.01, 1)))
    k = codec.kept(values.size)
    with np.errstate(all="ignore"):
        places, sent, left = reference(values, residual, k)
    if not np.isfinite(sent).all():  # 3e38 twice
        left = np.where(np.isfinite(left), left, 0)

    encoded, out = exchange(codec, values, residual)

    assert encoded[: 4 * k].view(np.int32).tolist() == places
    np.testing.assert_array_equal(encoded[4 * k :].view(np.float32), np.array(sent, "f4"))
    np.testing.assert_array_equal(residual, np.array(left, "f4"))
    expected = np.zeros(values.size, "f4")
    expected[places] = sent
    np.testing.assert_array_equal(out, expected)


def normal(rng, count):
    return rng.standard_normal(count)


def equal(rng, count):
    return np.ones(count)


def sparse(rng, count):
    return rng.standard_normal(count) * (rng.random(count) < 0.001)


def beside_the_sample(rng, count):
    """What is large lies where the guess does not look, or only there."""
    values = np.ones(count)
    values[::61] = 0 if rng.random() < 0.5 else 100
    return values * rng.random(count)


@pytest.mark.parametrize("make", [normal, equal, sparse, beside_the_sample])
@pytest.mark.parametrize("ratio", [1e-5, 0.01, 0.3, 1])
@pytest.mark.parametrize("seed", range(2))
def test_long_slices_are_selected_as_by_a_stable_sort(make, ratio, seed):
    values = make(np.random.default_rng(seed), 50_021).astype(np.float32)
    codec = TopK(ratio)
    k = codec.kept(values.size)
    residual = np.zeros_like(values)

    data, out = exchange(codec, values, residual)

    expected = np.sort(np.argsort(-np.abs(values), kind="stable")[:k])
    np.testing.assert_array_equal(data[: 4 * k].view(np.int32), expected)
    np.testing.assert_array_equal(out + residual, values)
    assert not residual[expected].any()


@pytest.mark.parametrize(
    ("ratio", "count", "k"), [(0.01, 0, 0), (0.01, 1, 1), (0.01, 1000, 10), (1, 7, 7)]
)
def test_an_encoding_has_a_fixed_size(ratio, count, k):
    codec = TopK(ratio)

    data, _ = exchange(codec, np.zeros(count, np.float32))

    assert codec.kept(count) == k and data.size == codec.nbytes(count) == 8 * k


def test_add_adds_the_sent_values_alone():
    rng = np.random.default_rng(3)
    values, start = rng.standard_normal((2, 301)).astype(np.float32)
    codec = TopK(0.1)
    data, out = exchange(codec, values)
    total = start.copy()

    codec.add(data, total)

    np.testing.assert_array_equal(total, start + out)
    assert np.count_nonzero(total != start) == 30


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bad", [1, 50])
def test_what_is_not_finite_goes_first_and_spoils_one_step_only(value, bad):
    codec = TopK(0.05)  # 5 of 100
    residual = np.zeros(100, np.float32)
    values = np.arange(100, dtype=np.float32)
    values[:bad] = value

    _, out = exchange(codec, values, residual)
    assert np.count_nonzero(~np.isfinite(out)) == min(bad, 5)
    assert np.isfinite(residual).all()

    _, out = exchange(codec, np.zeros(100, np.float32), residual)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("ratio", [0, -1, 1.01, math.nan])
def test_ratios_that_are_no_share_are_refused(ratio):
    with pytest.raises(ConfigError, match="top-k ratio"):
        TopK(ratio)
