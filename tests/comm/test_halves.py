import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hpctrain.comm.encoding import BLOCK
from hpctrain.comm.halves import BFloat16, Half
from hpctrain.graph.native import available, compile_text

pytestmark = pytest.mark.serial

QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)

COMPILED = pytest.mark.skipif(not available(), reason="no llvmlite")

# float32 and bfloat16, from ml_dtypes 0.6.0
PAIRS = [
    (0x00000000, 0x0000), (0x80000000, 0x8000), (0x3F800000, 0x3F80), (0x3F808000, 0x3F80),
    (0x3F818000, 0x3F82), (0x3F808001, 0x3F81), (0x3F807FFF, 0x3F80), (0x7F7FFFFF, 0x7F80),
    (0x7F7F7FFF, 0x7F7F), (0x7F7F8000, 0x7F80), (0x00000001, 0x0000), (0x00008000, 0x0000),
    (0x00008001, 0x0001), (0x00018000, 0x0002), (0x007FFFFF, 0x0080), (0x80017FFF, 0x8001),
    (0xBF818000, 0xBF82), (0x7F800000, 0x7F80), (0xFF800000, 0xFF80), (0x40490FDB, 0x4049),
    (0xC2F6E979, 0xC2F7),
]  # fmt: skip


@pytest.fixture(params=["numpy", pytest.param("llvm", marks=COMPILED)])
def compiler(request):
    return None if request.param == "numpy" else lambda text: compile_text(text).function


def encoded(codec, values):
    out = np.full(codec.nbytes(values.size), 0xA5, np.uint8)
    before = values.copy()
    codec.encode(values, out)
    np.testing.assert_array_equal(values.view("u4"), before.view("u4"))
    return out.view(np.uint16)


def every_class():
    """Return all signs, exponents and upper digits, each with lower digits near a tie."""
    upper = np.arange(1 << 16, dtype=np.uint32)[:, None] << 16
    lower = [0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xF000, 0xFFFF]
    return (upper | np.array(lower, np.uint32)).reshape(-1).view(np.float32)


def tame(values):
    """Return the values whose halves are finite: NumPy's blocks treat others apart."""
    return values[np.abs(values) < 65520]


@pytest.mark.parametrize("some", [every_class, lambda: tame(every_class())])
def test_halves_are_rounded_as_numpy_rounds_them(compiler, some):
    values = some()
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16)
    nan = np.isnan(values)

    found = encoded(Half(compiler), values)

    np.testing.assert_array_equal(found[~nan], expected[~nan].view("u2"))
    assert np.isnan(found[nan].view(np.float16)).all()


@QUICK
@given(values=arrays(np.float32, st.integers(0, 40), elements=st.floats(-7e4, 7e4, width=32)))
def test_halves_are_rounded_as_the_standard_library_rounds_them(values):
    def half(value):
        try:
            return struct.unpack("<H", struct.pack("<e", value))[0]
        except OverflowError:
            return 0x7C00 if value > 0 else 0xFC00

    expected = [half(value) for value in values.tolist()]

    assert encoded(Half(), values).tolist() == expected


def bfloat_of(bits):
    """Return the nearer of the two neighbours, of equally near ones the even, exactly."""
    sign, magnitude = bits & 0x80000000, bits & 0x7FFFFFFF
    low = magnitude & 0xFFFF0000

    def value(word):  # the grid goes on where infinity begins
        digits, exponent = word & 0x7FFFFF, word >> 23
        digits += (1 << 23) * (exponent > 0)
        return Fraction(digits) * Fraction(2) ** (max(exponent, 1) - 150)

    down, up = (abs(value(word) - value(magnitude)) for word in (low, low + 0x10000))
    odd = low >> 16 & 1
    chosen = low + 0x10000 if up < down or (up == down and odd) else low
    return (sign | chosen) >> 16


@QUICK
@given(st.lists(st.integers(0, 2**32 - 1).filter(lambda u: u & 0x7FFFFFFF < 0x7F800000)))
def test_bfloats_are_the_nearest(bits):
    values = np.array(bits, np.uint32).view(np.float32)

    assert encoded(BFloat16(), values).tolist() == [bfloat_of(u) for u in bits]


def test_bfloats_are_those_of_another_library(compiler):
    values, expected = np.array(PAIRS).T

    found = encoded(BFloat16(compiler), values.astype(np.uint32).view(np.float32))

    assert found.tolist() == expected.tolist()


def test_bfloats_are_the_nearest_in_every_class(compiler):
    values = every_class()[::211].copy()
    finite = np.isfinite(values)

    found = encoded(BFloat16(compiler), values)

    expected = [bfloat_of(u) for u in values[finite].view(np.uint32).tolist()]
    assert found[finite].tolist() == expected
    widened = (found.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(widened[~finite], values[~finite])


@pytest.mark.parametrize("kind", [Half, BFloat16])
def test_all_values_of_two_bytes_survive_the_round_trip(compiler, kind):
    codec = kind(compiler)
    data = np.arange(1 << 16, dtype=np.uint16)
    values = np.empty(1 << 16, np.float32)

    codec.decode(data.view(np.uint8), values)

    number = ~np.isnan(values)
    np.testing.assert_array_equal(encoded(codec, values)[number], data[number])
    assert np.isnan(encoded(codec, values[~number]).view("f2")).all() or kind is BFloat16
    oracle = data.view("f2").astype("f4") if kind is Half else (data.astype("u4") << 16)
    np.testing.assert_array_equal(values[number], oracle.view("f4")[number])


@pytest.mark.parametrize("kind", [Half, BFloat16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, -3.4e38])
@pytest.mark.parametrize("place", [3, BLOCK + 70])
def test_what_is_not_finite_is_seen_behind_the_wire(compiler, kind, value, place):
    values = np.ones(BLOCK + 71, np.float32)
    values[place] = value
    codec = kind(compiler)
    out = np.empty_like(values)

    codec.decode(encoded(codec, values).view(np.uint8), out)

    assert np.isfinite(out[place]) == (kind is BFloat16 and abs(value) == 1e38)
    out[place] = 1
    np.testing.assert_array_equal(out, 1)


@pytest.mark.parametrize("kind", [Half, BFloat16])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 33, BLOCK, BLOCK + 3])
def test_add_adds_in_float32_what_decode_writes(compiler, kind, count):
    rng = np.random.default_rng(count)
    values, start = rng.standard_normal((2, count)).astype(np.float32)
    codec = kind(compiler)
    data = encoded(codec, values).view(np.uint8)
    decoded, total = np.empty_like(values), start.copy()

    codec.decode(data, decoded)
    codec.add(data, total)

    np.testing.assert_array_equal(total, start + decoded)
    np.testing.assert_allclose(decoded, values, rtol=2**-8, atol=2**-25)


@pytest.mark.parametrize("kind", [Half, BFloat16])
def test_adding_opposite_infinities_gives_nan_without_a_warning(compiler, kind):
    codec = kind(compiler)
    data = encoded(codec, np.full(17, np.inf, np.float32)).view(np.uint8)
    total = np.full(17, -np.inf, np.float32)

    codec.add(data, total)

    assert np.isnan(total).all()
