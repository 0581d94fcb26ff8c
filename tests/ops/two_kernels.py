"""Runs one row with the kernels of oneDNN and with those of NumPy."""

from contextlib import contextmanager

import numpy as np
import pytest

from hpctrain.autograd import Spec, primitive
from hpctrain.ops import dnnl

needs_dnnl = pytest.mark.skipif(
    dnnl.library() is None, reason=f"kernels on this machine are {dnnl.describe()}"
)


@contextmanager
def kernels(name):
    """Let kernels be those of ``name`` inside."""
    before = dnnl.settings().kernels
    dnnl.settings().kernels = name
    try:
        yield
    finally:
        dnnl.settings().kernels = before


FENCE = 64  # bytes before and behind an array, which a kernel must leave as they are


def poisoned(specs):
    """Allocate arrays whose bytes are all ones: not a number, -1, or 255; between fences."""
    arrays = []
    for spec in specs:
        size = spec.size * spec.dtype.itemsize
        room = np.full(size + 3 * FENCE, 0xFF, np.uint8)
        start = FENCE + -room.ctypes.data % FENCE
        arrays.append(room[start : start + size].view(spec.dtype).reshape(spec.shape))
    return arrays


def whole(array):
    """Return the memory that an array is a view of."""
    while array.base is not None:
        array = array.base
    return array


def check_fences(arrays):
    """Check that nothing was written beside arrays that are `poisoned`."""
    for array in arrays:
        room = whole(array)
        start = array.ctypes.data - room.ctypes.data
        assert (room[:start] == 0xFF).all(), "written before an array"
        assert (room[start + array.nbytes :] == 0xFF).all(), "written behind an array"


def strided(array):
    """Return the same elements in memory of other strides, with others between them."""
    other = np.full((*array.shape, 2), 7, array.dtype, order="F")
    other[..., 0] = array
    return other[..., 0]


def program(name, arrays, **attrs):
    """Return the program of oneDNN that the row would run, or None."""
    row = primitive(name)
    return row.kernel.__self__.program([Spec.of(a) for a in arrays], attrs)


def run(name, arrays, **attrs):
    """Run the row at once into poisoned outputs, on inputs that cannot be written."""
    row, specs = primitive(name), [Spec.of(a) for a in arrays]
    for array in arrays:
        array.flags.writeable = False
    outs, scratch = (poisoned(f(specs, **attrs)) for f in (row.infer, row.scratch))
    row.kernel(np, arrays, outs, scratch, **attrs)
    check_fences([*outs, *scratch])
    return outs


def run_bound(name, arrays, **attrs):
    """Bind the row, then run it twice."""
    row, specs = primitive(name), [Spec.of(a) for a in arrays]
    outs, scratch = (poisoned(f(specs, **attrs)) for f in (row.infer, row.scratch))
    ready = row.bind(np, arrays, outs, scratch, **attrs)
    ready()
    ready()
    check_fences([*outs, *scratch])
    return outs


def compare(name, arrays, limit=2e-6, **attrs):
    """Check that a program runs, and gives what NumPy gives.

    The same bits if it is bound, and for inputs of other strides. ``limit`` is for the error
    relative to the largest element, or to 1.
    """
    assert program(name, arrays, **attrs) is not None
    fast = run(name, arrays, **attrs)
    for way in (run, run_bound):
        for given in (arrays, [strided(a) for a in arrays]):
            for have, again in zip(fast, way(name, given, **attrs), strict=True):
                np.testing.assert_array_equal(have, again)
    with kernels("numpy"):
        slow = run(name, arrays, **attrs)
    for have, want in zip(fast, slow, strict=True):
        scale = max(1, np.abs(want).max())
        np.testing.assert_allclose(have, want, rtol=0, atol=limit * scale)
    return fast
