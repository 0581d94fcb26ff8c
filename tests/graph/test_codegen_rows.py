"""Loops over short rows: the bits of the loops for rows of any length."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from hpctrain.autograd.element import source
from hpctrain.graph.codegen import Loops, Operand

pytest.importorskip("llvmlite")
from kernels import run

from hpctrain.graph.codegen_rows import rows_text, short_rows
from hpctrain.graph.native import compile_text

pytestmark = pytest.mark.serial


def operands(dtype, *shapes):
    """Return arrays of three axes, broadcast where they have length 1, and what they are."""
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(s).astype(dtype) for s in shapes]
    return arrays, [Operand(dtype, int(s[-1] > 1)) for s in shapes]


def strides(array, sizes):
    return [0 if n == 1 < size else s for n, s, size in
            zip(array.shape, array.strides, sizes, strict=True)]  # fmt: skip


def both_ways(loops, ins, outs, sizes):
    """Run both kernels on copies of ``outs``."""
    steps = [strides(a, sizes) for a in (*ins, *outs)]
    rows = short_rows(loops, sizes, steps)
    assert rows is not None
    results = []
    for way in (rows_text(rows), None):
        given = [a.copy() for a in outs]
        arrays = [np.lib.stride_tricks.as_strided(a, sizes, s)
                  for a, s in zip((*ins, *given), steps, strict=True)]  # fmt: skip
        if way is None:
            run(loops, arrays[: len(ins)], arrays[len(ins) :], *sizes)
        else:
            flat = [s for each in steps for s in each]
            compile_text(way).function(
                (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays]),
                (ctypes.c_int64 * len(sizes))(*sizes),
                (ctypes.c_int64 * len(flat))(*flat),
            )
        results.append(given)
    return results


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("channels", [16, 32, 48])
def test_values_and_sums_have_the_same_bits(dtype, channels):
    sizes, whole, vector = (3, 40, channels), (3, 40, channels), (1, 1, channels)
    ins, taken = operands(dtype, whole, vector, (3, 40, 1), (3, 1, channels))
    outs, given = operands(dtype, whole, vector, (1, 40, channels))
    x, shift, column, each = (source(k, dtype) for k in range(4))
    made = (x - shift) * column + each, x * shift, x * x
    loops = Loops(3, tuple(taken), tuple(zip(made, given, strict=True)), (False, True, True))

    short, any_length = both_ways(loops, ins, outs, sizes)

    for have, want, before in zip(short, any_length, outs, strict=True):
        np.testing.assert_array_equal(have, want)
        assert not np.array_equal(have, before)
    np.testing.assert_allclose(short[1], outs[1] + (ins[0] * ins[1]).sum((0, 1)), rtol=1e-3)


def test_a_result_may_lie_over_an_input():
    sizes = (1, 20, 32)
    (x, shift), taken = operands("float32", sizes, (1, 1, 32))
    want = (x - shift) * x
    formula = (source(0, "float32") - source(1, "float32")) * source(0, "float32")
    loops = Loops(3, tuple(taken), ((formula, Operand("float32", 1)),), (False,))
    rows = short_rows(loops, sizes, [strides(a, sizes) for a in (x, shift, x)])

    compile_text(rows_text(rows)).function(
        (ctypes.c_void_p * 3)(*[a.ctypes.data for a in (x, shift, x)]),
        (ctypes.c_int64 * 3)(*sizes),
        (ctypes.c_int64 * 9)(*[s for a in (x, shift, x) for s in strides(a, sizes)]),
    )

    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("sizes", [(40, 17), (40, 512), (4, 16), (640,)])
def test_other_rows_are_left_to_the_general_loops(sizes):
    x = source(0, "float32")
    vector = Operand("float32", 1)
    loops = Loops(len(sizes), (vector,), ((x + 1.0, vector),), (False,))
    steps = [[4 * int(np.prod(sizes[d + 1 :])) for d in range(len(sizes))]] * 2

    assert short_rows(loops, sizes, steps) is None


def test_a_sum_along_the_row_is_left_to_them_too():
    x, vector = source(0, "float32"), Operand("float32", 1)
    loops = Loops(2, (vector,), ((x, Operand("float32", 0)),), (True,))
    steps = [[64, 4], [4, 0]]

    assert short_rows(loops, (40, 16), steps) is None
    other = replace(loops, results=((x, vector),), summed=(True,))
    assert short_rows(other, (40, 16), [[64, 4], [0, 4]]) is not None
