"""exp, log, tanh, erf and their like: at most 4 ULP from the true value, over all numbers."""

import math

import numpy as np
import pytest

from hpctrain.autograd import element
from hpctrain.autograd.element import in_order, source
from hpctrain.graph.elementary import expand

pytest.importorskip("llvmlite")
from kernels import compiled

pytestmark = [pytest.mark.serial, pytest.mark.slow]
NAMES = ["exp", "expm1", "log", "log1p", "tanh", "erf", "sigmoid"]
LIMIT = 4.0


def true_values(name, x):
    """Return the function at ``x`` in the precision of ``x``, wider than what is tested."""
    if name == "erf":
        return np.frompyfunc(math.erf, 1, 1)(x.astype(float)).astype(x.dtype)
    if name == "sigmoid":
        e = np.exp(-np.abs(x))
        return np.where(x < 0, e, 1) / (1 + e)
    return getattr(np, name)(x)


def errors(got, true):
    """Return errors in units in the last place of the true value rounded."""
    rounded = true.astype(got.dtype)
    unit = np.spacing(np.abs(rounded)).astype(true.dtype)
    off = np.abs(got.astype(true.dtype) - true) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(same, 0, np.where(np.isnan(off), np.inf, off))


def worst(name, x, wide):
    with np.errstate(all="ignore"):
        off = errors(compiled(getattr(element, name), x), true_values(name, x.astype(wide)))
    place = int(np.argmax(off))
    return float(off[place]), x[place]


def edges(dtype):
    """Return numbers where something changes, and their neighbours."""
    info = np.finfo(dtype)
    top, bottom = math.log(info.max), math.log(info.smallest_subnormal)
    at = [0, 0.55, 0.94, 1.25, 1, math.sqrt(0.5), math.sqrt(2), 4, 6, 60, top, bottom]
    at += [
        info.smallest_normal,
        info.smallest_subnormal,
        info.max,
        math.log(info.tiny),
        math.inf,
    ]
    x = np.array([*at, *(-a for a in at)], dtype)
    return np.concatenate(
        [
            x,
            np.nextafter(x, dtype(9e9)),
            np.nextafter(x, dtype(-9e9)),
            np.array([np.nan], dtype),
        ]
    )


@pytest.mark.parametrize("name", NAMES)
def test_float32_over_all_exponents(name):
    step = 40_009 if name == "erf" else 4_001  # prime: every mantissa bit changes
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    near = np.linspace(-110, 110, 50_001 if name == "erf" else 1_000_001, dtype=np.float32)
    x = np.concatenate([bits.view(np.float32), near, near / 40, edges(np.float32)])

    off, at = worst(name, x, np.float64)

    assert off <= LIMIT, f"{name}({at!r}) is off by {off:.2f} ULP"


@pytest.mark.skipif(
    np.finfo(np.longdouble).eps > 2e-19, reason="no type wider than float64 here"
)
@pytest.mark.parametrize("name", NAMES)
def test_float64_over_all_exponents(name):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**64, 100_000, dtype=np.uint64).view(np.float64)
    spread = [rng.uniform(-a, a, 100_000) for a in (750, 40, 6, 1)]
    x = np.concatenate([bits, *spread, edges(np.float64)])

    off, at = worst(name, x, np.longdouble)

    # The C library's erf, the oracle, has itself an error of up to 1 ULP.
    assert off <= LIMIT - (name == "erf"), f"{name}({at!r}) is off by {off:.2f} ULP"


@pytest.mark.parametrize("name", NAMES)
def test_infinities_and_nan_are_those_of_numpy(name):
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    with np.errstate(all="ignore"):
        want = true_values(name, x)

    np.testing.assert_array_equal(compiled(getattr(element, name), x), want)


def test_nothing_is_left_that_a_vector_unit_lacks():
    x = source(0, "float32")
    root = element.log1p(element.exp(element.tanh(element.erf(element.expm1(element.log(x))))))

    left = {e.op for e in in_order([expand(root)])}

    assert left <= {
        "input", "constant", "add", "subtract", "multiply", "divide", "negative", "absolute",
        "maximum", "minimum", "less", "equal", "and", "where", "fma", "bits", "shift_left",
        "shift_right",
    }  # fmt: skip
