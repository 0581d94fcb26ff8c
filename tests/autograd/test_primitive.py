"""Rows and specs: plain data that refuses what is wrong."""

import numpy as np
import pytest

from hpctrain.autograd import PRIMITIVES, Primitive, Spec, Tensor, apply_row, primitive
from hpctrain.errors import ShapeError

pytestmark = pytest.mark.serial


def test_a_spec_knows_sizes_without_elements():
    spec = Spec((2, 3), np.dtype(np.float32))

    assert (spec.ndim, spec.size, spec.nbytes, str(spec)) == (2, 6, 24, "float32[2,3]")
    assert spec == Spec.of(np.empty((2, 3), "f4"))
    assert spec.with_shape([np.int64(6)]).shape == (6,)


def test_a_scalar_has_one_element():
    assert Spec((), np.dtype(np.float64)).nbytes == 8


def test_an_unknown_row_is_named():
    with pytest.raises(ShapeError, match="no operation called 'frobnicate'"):
        primitive("frobnicate")


def test_the_table_cannot_be_written_from_outside():
    with pytest.raises(TypeError):
        PRIMITIVES["mine"] = PRIMITIVES["add"]


def test_an_unknown_kind_is_refused():
    with pytest.raises(AssertionError, match="odd: unknown kind 'magic'"):
        Primitive("odd", "magic", lambda specs: specs, lambda *_: None)


def test_a_row_outside_the_table_can_be_applied():
    def kernel(xp, ins, outs, scratch, factor):
        xp.multiply(ins[0], factor, out=scratch[0])
        outs[0][...] = scratch[0].sum(0)
        outs[1][...] = scratch[0]

    row = Primitive(
        "scaled_sum",
        "reduce",
        lambda specs, factor: [specs[0].with_shape(specs[0].shape[1:]), specs[0]],
        kernel,
        scratch=lambda specs, factor: [specs[0]],
    )

    total, scaled = apply_row(row, [Tensor(np.arange(6.0).reshape(3, 2))], {"factor": 2.0})

    np.testing.assert_array_equal(total.asnumpy(), [12, 18])
    np.testing.assert_array_equal(scaled.asnumpy(), 2 * np.arange(6.0).reshape(3, 2))
    assert "scaled_sum" not in PRIMITIVES


def test_a_view_row_shares_memory_and_copies_where_strides_forbid_it():
    def view(x):
        return x[0] if x.flags.c_contiguous else None

    row = Primitive(
        "first",
        "movement",
        lambda specs: [specs[0].with_shape(specs[0].shape[1:])],
        lambda xp, ins, outs, scratch: outs[0].__setitem__(..., ins[0][0]),
        view=view,
    )
    x = np.arange(6.0).reshape(3, 2)

    (seen,) = apply_row(row, [Tensor(x)], {})
    (copied,) = apply_row(row, [Tensor(x.T)], {})

    assert np.shares_memory(seen.array, x)
    assert not np.shares_memory(copied.array, x)
    np.testing.assert_array_equal(copied.asnumpy(), x.T[0])
