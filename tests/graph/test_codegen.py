"""Generated loops: any strides, any length, sums, dtypes; arithmetic as in NumPy."""

import re

import numpy as np
import pytest

from hpctrain.autograd import element
from hpctrain.autograd.element import cast, source
from hpctrain.graph.codegen import Loops, Operand, llvm_text

pytest.importorskip("llvmlite")
from kernels import compiled, run

pytestmark = pytest.mark.serial
RNG = np.random.default_rng(5)
DTYPES = ["float32", "float64", "int32", "int64", "bool"]


def numbers(shape, dtype):
    x = RNG.integers(-3, 4, shape)
    return (
        x.astype(dtype) if dtype != "float32" else (x + RNG.uniform(size=shape)).astype(dtype)
    )


def plain(x, *operands, summed=False, ndim=1):
    return Loops(ndim, operands[:-1], ((x, operands[-1]),), (summed,))


@pytest.mark.parametrize("size", [1, 15, 16, 17, 31, 32, 33, 100])
def test_elements_beyond_the_last_vector_are_computed_and_no_more(size):
    x, out = numbers(size, "float32"), np.full(size + 16, 7, np.float32)
    vector = Operand("float32", 1)

    run(plain(source(0, "float32") + 1.0, vector, vector), [x], [out], size)

    np.testing.assert_array_equal(out[:size], x + np.float32(1))
    np.testing.assert_array_equal(out[size:], 7)


@pytest.mark.parametrize("a", DTYPES)
@pytest.mark.parametrize("b", DTYPES)
def test_casts_are_those_of_numpy(a, b):
    x = numbers(37, a)

    np.testing.assert_array_equal(compiled(lambda e: cast(e, b), x), x.astype(b))


@pytest.mark.parametrize("a", ["float32", "float64"])
@pytest.mark.parametrize("b", ["int32", "int64"])
def test_what_is_not_a_number_is_no_index(a, b):
    x = np.array([1.5, np.nan, -2.5, -np.nan, 3] * 5, a)
    lowest = np.iinfo(b).min

    found = compiled(lambda e: cast(e, b), x)

    np.testing.assert_array_equal(found, np.array([1, lowest, -2, lowest, 3] * 5, b))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_arithmetic_has_the_bits_of_numpy(dtype):
    a, b = numbers(37, dtype), numbers(37, dtype)
    b[b == 0] = 1
    pairs = [
        (lambda x, y: x + y, a + b), (lambda x, y: x - y, a - b), (lambda x, y: x * y, a * b),
        (lambda x, y: x * y - y, a * b - b), (lambda x, y: -x, -a),
        (lambda x, y: element.maximum(x, y), np.maximum(a, b)),
        (lambda x, y: element.minimum(x, 1), np.minimum(a, dtype_of(dtype)(1))),
        (lambda x, y: element.absolute(x), np.abs(a)),
        (lambda x, y: element.sign(x), np.sign(a)),
        (lambda x, y: x < y, a < b), (lambda x, y: x >= y, a >= b),
        (lambda x, y: x.equals(y), a == b), (lambda x, y: x.differs(y), a != b),
        (lambda x, y: element.where(x < y, x, y * 2), np.where(a < b, a, b * 2)),
        (lambda x, y: element.logical_not(x), np.logical_not(a)),
        (lambda x, y: x / y, a / b),
    ]  # fmt: skip

    for place, (formula, want) in enumerate(pairs):
        np.testing.assert_array_equal(compiled(formula, a, b), want, err_msg=str(place))


def dtype_of(name):
    return np.dtype(name).type


def test_nan_and_infinity_go_where_numpy_lets_them_go():
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], np.float32)
    a, b = (x.ravel().copy() for x in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        wanted = [
            (element.maximum, np.maximum(a, b)), (element.minimum, np.minimum(a, b)),
            (lambda x, y: element.maximum(x, 0), np.maximum(a, 0)),
            (lambda x, y: element.minimum(1.0, x), np.minimum(1, a)),
            (lambda x, y: x * y, a * b), (lambda x, y: x - y, a - b),
            (lambda x, y: x / y, a / b),
            (lambda x, y: x < y, a < b), (lambda x, y: x.differs(y), a != b),
            (lambda x, y: element.isfinite(x), np.isfinite(a)),
            (lambda x, y: element.sqrt(x), np.sqrt(a)), (lambda x, y: x * y + x, a * b + a),
        ]  # fmt: skip

    for place, (formula, want) in enumerate(wanted):
        np.testing.assert_array_equal(compiled(formula, a, b), want, err_msg=str(place))


def test_operands_may_have_any_strides():
    wide = numbers((5, 40), "float64")
    x, row, column = wide[:, ::2], numbers(20, "float64"), numbers((5, 1), "float64")
    out = np.empty((5, 20))
    formula = source(0, "float64") * source(1, "float64") + source(2, "float64")
    operands = [Operand("float64", step) for step in (2, 1, 0, 1)]

    ins = [x, np.broadcast_to(row, out.shape), np.broadcast_to(column, out.shape)]
    run(plain(formula, *operands, ndim=2), ins, [out], 5, 20)

    np.testing.assert_array_equal(out, x * row + column)


def test_sums_go_along_any_loop():
    x = numbers((3, 7, 50), "float64")
    outs = [np.zeros(s) for s in ((3, 7), (7, 50), (1,), (50,))]
    seen = [
        np.broadcast_to(outs[0][:, :, None], x.shape), np.broadcast_to(outs[1], x.shape),
        np.broadcast_to(outs[2], x.shape), np.broadcast_to(outs[3], x.shape),
    ]  # fmt: skip
    square = source(0, "float64") * source(0, "float64")
    steps = [Operand("float64", step) for step in (0, 1, 0, 1)]
    loops = Loops(3, (Operand("float64", 1),), tuple((square, s) for s in steps), (True,) * 4)

    run(loops, [x], seen, *x.shape)

    for out, axes in zip(outs, [2, 0, (0, 1, 2), (0, 1)], strict=True):
        np.testing.assert_allclose(out, np.reshape((x * x).sum(axis=axes), out.shape), 1e-13)


def test_a_long_sum_of_float32_loses_no_more_than_pairwise_summation():
    x = RNG.uniform(size=1_000_003).astype(np.float32)
    out = np.zeros(1, np.float32)

    loops = plain(
        source(0, "float32"), Operand("float32", 1), Operand("float32", 0), summed=True
    )
    run(loops, [x], [out], x.size)

    assert abs(out[0] - x.sum(dtype=float)) / x.sum(dtype=float) < 1e-6


def test_equal_expressions_are_written_once():
    x = source(0, "float32")
    operand = Operand("float32", 1)

    text = llvm_text(plain((x + 1.0) * (x + 1.0), operand, operand))

    assert len(re.findall("fadd <16", text)) == 2  # in the loop, and under the mask


def test_the_text_calls_no_library():
    x = source(0, "float32")
    operand = Operand("float32", 1)

    text = llvm_text(plain(element.tanh(element.log(element.exp(x))), operand, operand))

    called = set(re.findall(r"declare .* @([\w.]+)\(", text))
    assert called <= {
        "llvm.fabs.v16f32", "llvm.fmuladd.v16f32", "llvm.masked.load.v16f32.p0",
        "llvm.masked.store.v16f32.p0",
    }  # fmt: skip
