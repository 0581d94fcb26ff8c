import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hpctrain.comm.encoding import BLOCK
from hpctrain.comm.twobit import TwoBit
from hpctrain.errors import ConfigError
from hpctrain.graph.native import available, compile_text

pytestmark = pytest.mark.serial

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)

COMPILED = pytest.mark.skipif(not available(), reason="no llvmlite")
FLOATS = st.floats(width=32)

# What MXNet 1.9.1 sends for these gradients at threshold 0.75, in thresholds: kvstore
# "device" with two CPU contexts, the second one's gradient 0.
GRADIENTS = [
    [0.75, -0.75, 0.125, -1.875, -0.25, -0.375, -0.0625, -0.625, -0.0625, -0.5],
    [0.1, -0.3, 0.875, 1.6875, 0.0625, -0.375, -0.5625, -1.5625, 1.0, -1.125],
    [-1.1875, -0.1875, 1.5, 0.25, -1.0, -0.6875, 0.625, -0.1875, -0.75, -0.25],
    [0.75, 2.0, -1.25, -0.625, -0.8125, -2.4375, -0.9375, -1.0, 1.125, -0.125],
    [-1.625, 0.625, -0.375, -1.75, -0.625, -0.5625, -0.875, 0.0, -2.25, -0.25],
    [1.0, 0.875, 1.125, 1.125, 1.5, -1.125, 0.875, -1.875, -0.625, -1.9375],
]
SENT = [
    [1, -1, 0, -1, 0, 0, 0, 0, 0, 0],
    [0, 0, 1, 0, 0, -1, 0, -1, 1, -1],
    [-1, 0, 1, 1, -1, 0, 0, -1, 0, -1],
    [0, 1, 0, 0, -1, -1, -1, -1, 0, 0],
    [-1, 1, 0, -1, -1, -1, -1, -1, -1, -1],
    [0, 1, 0, 0, 1, -1, 0, -1, -1, -1],
]


@pytest.fixture(scope="module", params=["numpy", pytest.param("llvm", marks=COMPILED)])
def compiler(request):
    return None if request.param == "numpy" else lambda text: compile_text(text).function


def exchange(codec, values, residual):
    """Return the bytes and what they are decoded to."""
    data = np.full(codec.nbytes(values.size), 0xA5, np.uint8)
    out = np.full(values.size, 7, np.float32)
    before = values.copy()
    codec.encode(values, data, residual)
    np.testing.assert_array_equal(values, before)
    codec.decode(data, out)
    return data, out


def reference(values, residual, threshold):
    """Return the bytes, what is sent and what is left, one value at a time."""
    t = np.float32(threshold)
    data, sent, left = [0] * math.ceil(len(values) / 4), [], []
    for i, (g, r) in enumerate(zip(values, residual, strict=True)):
        s = g + r
        if not math.isfinite(s):
            code, value, rest = 0x88, np.float32(np.nan), np.float32(0)
        elif s >= t:
            code, value, rest = 0x80, t, s - t
        elif s <= -t:
            code, value, rest = 0x08, -t, s + t
        else:
            code, value, rest = 0, np.float32(0), s
        data[i // 4] |= code >> i % 4
        sent.append(value)
        left.append(rest)
    return np.array(data, "u1"), np.array(sent, "f4"), np.array(left, "f4")


def check(compiler, values, residual, threshold):
    with np.errstate(all="ignore"):
        data, sent, left = reference(values, residual, threshold)

    found = exchange(TwoBit(threshold, compiler), values, residual)

    np.testing.assert_array_equal(found[0], data)
    np.testing.assert_array_equal(found[1], sent)
    np.testing.assert_array_equal(residual, left)


@QUICK
@given(
    data=st.data(),
    count=st.integers(0, 70),
    threshold=st.floats(2.0**-120, 2.0**100, width=32),
)
def test_every_value_is_treated_as_by_the_rule(compiler, data, count, threshold):
    values = data.draw(arrays(np.float32, count, elements=FLOATS))
    residual = data.draw(arrays(np.float32, count, elements=st.floats(-4, 4, width=32)))

    check(compiler, values, residual, threshold)


@pytest.mark.parametrize("count", [0, 1, 4, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 5])
def test_every_length_is_treated_as_by_the_rule(compiler, count):
    rng = np.random.default_rng(count)
    values, residual = rng.standard_normal((2, count)).astype(np.float32)
    values[::3] = np.round(values[::3])  # also sums of exactly one threshold

    check(compiler, values, residual, 1.0)


def test_what_is_sent_is_what_mxnet_sends(compiler):
    codec = TwoBit(0.75, compiler)
    residual = np.zeros(20, np.float32)

    for gradient, sent in zip(GRADIENTS, SENT, strict=True):
        _, out = exchange(codec, np.array(gradient * 2, np.float32), residual)
        np.testing.assert_array_equal(out, np.array(sent * 2, np.float32) * np.float32(0.75))


@pytest.mark.parametrize("special", [None, np.inf, np.nan])
@pytest.mark.parametrize("size", [1.0, 0.3, 2e-5])
@pytest.mark.parametrize("count", [0, 1, 16, 33, BLOCK + 7])
def test_a_move_sends_the_difference_and_both_sides_end_alike(compiler, count, size, special):
    """Against the same in separate passes: difference, quotient, code, product, sum."""
    rng = np.random.default_rng(count)
    codec = TwoBit(0.7, compiler)
    known, values = rng.standard_normal((2, count)).astype(np.float32)
    values[1::2] = known[1::2] + np.float32(size) * values[1::2]
    values[::5] = known[::5]
    if special is not None:
        values[-2::-7] = special
    before, there = known.copy(), known.copy()
    data = np.full(codec.nbytes(count), 0xA5, np.uint8)

    scale = codec.move(known, values, data)
    codec.add(data, there, scale)

    factor = np.float32(scale)
    with np.errstate(all="ignore"):
        bits, sent, _ = reference((values - before) / factor, np.zeros(count, "f4"), 0.7)
        moved = before + sent * factor
    np.testing.assert_array_equal(data, bits)
    np.testing.assert_array_equal(known, moved)
    np.testing.assert_array_equal(there, moved)


@pytest.mark.parametrize("size", [1e-30, 2e-5, 1.0, 3e20])
def test_moves_fit_the_threshold_to_the_size_of_what_changes(compiler, size):
    rng = np.random.default_rng(3)
    codec, known = TwoBit(0.7, compiler), np.zeros(50_000, np.float32)
    values = (size * rng.standard_normal(known.size)).astype(np.float32)
    values[::3] = 0
    data = np.empty(codec.nbytes(known.size), np.uint8)
    mean = np.abs(values[values != 0]).mean(dtype=np.float64)

    assert codec.move(known, values, data) * 0.7 == pytest.approx(0.95 * mean, rel=0.02)
    for _ in range(30):
        codec.move(known, values, data)

    assert np.abs(values - known).mean(dtype=np.float64) < 0.05 * mean


@pytest.mark.parametrize("change", [0.0, 1e-45, np.inf, np.nan])
def test_a_move_of_no_size_is_made_in_units_of_the_gradient(compiler, change):
    codec, known = TwoBit(100.0, compiler), np.ones(17, np.float32) * np.float32(1e-45)
    data = np.empty(codec.nbytes(17), np.uint8)

    assert codec.move(known, known + np.float32(change), data) == 1

    finite = 17 * np.isfinite(change)
    assert np.count_nonzero(known == np.float32(1e-45)) == finite


@pytest.mark.parametrize("count", [0, 1, 16, 33, BLOCK + 7])
def test_add_adds_what_decode_writes(compiler, count):
    rng = np.random.default_rng(1)
    values, start = rng.standard_normal((2, count)).astype(np.float32)
    codec = TwoBit(0.5, compiler)
    data, out = exchange(codec, values, None)
    total = start.copy()

    codec.add(data, total)

    np.testing.assert_array_equal(total, start + out)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [5, 65])
def test_what_is_not_finite_arrives_as_nan_and_spoils_one_step_only(compiler, value, place):
    codec = TwoBit(0.5, compiler)
    residual = np.zeros(66, np.float32)
    values = np.full(66, 0.6, np.float32)
    values[place] = value
    after = values.copy()
    after[place] = 0.6

    _, out = exchange(codec, values, residual)
    assert np.flatnonzero(~np.isfinite(out)).tolist() == [place]

    _, out = exchange(codec, after, residual)
    np.testing.assert_array_equal(out, np.float32(0.5))


def test_sixteen_values_travel_in_four_bytes():
    assert [TwoBit().nbytes(n) for n in (0, 1, 4, 5, 16, 17)] == [0, 1, 1, 2, 4, 5]


@pytest.mark.parametrize("threshold", [0, -0.5, math.nan, math.inf, 1e-60, 1e60])
def test_thresholds_that_are_no_positive_float32_are_refused(threshold):
    with pytest.raises(ConfigError, match="2-bit threshold"):
        TwoBit(threshold)


def test_what_is_owed_of_sums_stays_below_their_threshold():
    """Ranks that always agree send sums as large as they can be: none must be late for ever."""
    sums = TwoBit(0.5).of_sums(3)
    data, out = np.empty(sums.nbytes(4), np.uint8), np.empty(4, np.float32)
    residual, total = np.zeros(4, np.float32), np.zeros(4)
    terms = np.array([1.5, -1.5, 0.5, -1.0], np.float32)  # of three ranks that send 0.5 each
    for _ in range(60):
        sums.encode(terms, data, residual)
        sums.decode(data, out)
        total += out

    assert (np.abs(residual) < 1.5).all()
    np.testing.assert_allclose(total + residual, 60.0 * terms)
