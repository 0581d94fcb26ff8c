"""Transposes of oneDNN: the elements of NumPy's, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_kernels import kernels, needs_dnnl

from hpctrain.autograd import Spec, primitive
from hpctrain.ops.dnnl_transpose import transposition

pytestmark = [pytest.mark.serial, needs_dnnl]
TRANSPOSE = primitive("transpose")


@st.composite
def cases(draw):
    """Return a shape of 4096 elements or more, and an order in which the last axis moves."""
    ndim = draw(st.integers(2, 5))
    shape = [draw(st.integers(2, 9)) for _ in range(ndim)]
    shape[draw(st.integers(0, ndim - 1))] *= -(-4096 // int(np.prod(shape)))
    axes = draw(st.permutations(range(ndim)).filter(lambda p: p[-1] != ndim - 1))
    return tuple(shape), tuple(axes)


def any_bits(rng, shape, dtype):
    """Return elements of all kinds: infinite, tiny, and not numbers of any payload."""
    return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]


def guarded(shape, dtype):
    """Return an array to write into, and the bytes before and behind it."""
    size = int(np.prod(shape)) * dtype.itemsize
    whole = np.full(size + 128, 0xAB, np.uint8)
    return whole[64 : 64 + size].view(dtype).reshape(shape), (whole[:64], whole[64 + size :])


@pytest.mark.parametrize("name", ["float32", "int32", "uint8"])
@given(case=cases(), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_every_bit_is_moved_and_nothing_beside_is_written(name, case, seed):
    shape, axes = case
    dtype = np.dtype(name)
    x = any_bits(np.random.default_rng(seed), shape, dtype)
    assert transposition(Spec.of(x), axes) is not None
    want = np.ascontiguousarray(x.transpose(axes))

    for bound in (False, True):
        out, edges = guarded(want.shape, dtype)
        if bound:
            TRANSPOSE.bind(np, [x], [out], [], axes=axes)()
        else:
            TRANSPOSE.kernel(np, [x], [out], [], axes=axes)
        assert out.tobytes() == want.tobytes()
        assert all((edge == 0xAB).all() for edge in edges)


def test_views_of_other_strides_small_arrays_and_other_dtypes_are_numpys():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 65, 2))[..., 0].astype(np.float32)
    for given_ in (x[:, ::-1], x[:8], x.astype(np.float64), np.asfortranarray(x)):
        out = np.empty(given_.shape[::-1], given_.dtype)
        assert TRANSPOSE.bind(np, [given_], [out], [], axes=(1, 0)) is None
        TRANSPOSE.kernel(np, [given_], [out], [], axes=(1, 0))
        assert np.array_equal(out, given_.T)


def test_without_the_library_numpy_copies():
    x = np.ones((64, 65), np.float32)
    with kernels("numpy"):
        assert (
            TRANSPOSE.bind(np, [x], [np.empty((65, 64), np.float32)], [], axes=(1, 0)) is None
        )
