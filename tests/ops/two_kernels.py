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


def poisoned(specs):
    """Allocate arrays whose bytes are all ones: not a number, -1, or 255."""
    arrays = [np.empty(s.shape, s.dtype) for s in specs]
    for array in arrays:
        array.reshape(-1).view(np.uint8)[...] = 0xFF
    return arrays


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
    return outs


def run_bound(name, arrays, **attrs):
    """Bind the row, then run it twice."""
    row, specs = primitive(name), [Spec.of(a) for a in arrays]
    outs, scratch = (poisoned(f(specs, **attrs)) for f in (row.infer, row.scratch))
    ready = row.bind(np, arrays, outs, scratch, **attrs)
    ready()
    ready()
    return outs


def compare(name, arrays, limit=2e-6, **attrs):
    """Check that a program runs, that it gives what NumPy gives, and the same bits if bound.

    ``limit`` is for the error relative to the largest element, or to 1.
    """
    assert program(name, arrays, **attrs) is not None
    fast = run(name, arrays, **attrs)
    bound = run_bound(name, arrays, **attrs)
    with kernels("numpy"):
        slow = run(name, arrays, **attrs)
    for have, again, want in zip(fast, bound, slow, strict=True):
        np.testing.assert_array_equal(have, again)
        scale = max(1, np.abs(want).max())
        np.testing.assert_allclose(have, want, rtol=0, atol=limit * scale)
    return fast
