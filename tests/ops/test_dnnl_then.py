"""Convolutions that go on: against the rows that they replace, on random shapes."""

import numpy as np
import pytest
from conv_shapes import convolutions, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from two_kernels import compare, needs_dnnl, program, run, run_bound

from hpctrain.autograd import Spec, primitive
from hpctrain.errors import ShapeError

pytestmark = [pytest.mark.serial, needs_dnnl]


def leaky(slope):
    return "leaky_relu", (("slope", slope),)


LEAK, ADD = leaky(0.25), ("add", ())
CHAINS = [(LEAK,), (ADD,), (ADD, LEAK), (LEAK, ADD), (ADD, ADD, leaky(1.5))]


def added(rng, shape, after, vectors):
    """Return what the steps add: arrays of this shape, or every other one a vector."""
    count = sum(step == ADD for step in after)
    return normal(rng, *(shape[-1:] if i % 2 == vectors else shape for i in range(count)))


def one_after_the_other(name, ins, after, more, **attrs):
    """Run the rows themselves."""
    (y,), more = run(name, ins, **attrs), list(more)
    for row, given_ in after:
        (y,) = run(row, [y, more.pop(0)] if row == "add" else [y], **dict(given_))
    return y


def refused(name, ins, after, attrs):
    """Return whether there is no such kernel; then no row is offered."""
    found = program(f"{name}_then", ins, after=after, **attrs)
    row = primitive(name).then([Spec.of(a) for a in ins], after, **attrs)
    assert (row is None) == (found is None)
    return found is None


@given(case=convolutions(), after=st.sampled_from(CHAINS), vectors=st.integers(0, 1))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_a_convolution_that_goes_on_has_the_bits_of_rows_one_after_the_other(
    case, after, vectors
):
    shape, kernel, biased, attrs = case
    rng = np.random.default_rng(0)
    ins = normal(rng, shape, kernel, kernel[:1])[: 2 + biased]
    (out,) = primitive("conv").infer([Spec.of(a) for a in ins], **attrs)
    more = added(rng, out.shape, after, vectors)
    if refused("conv", [*ins, *more], after, attrs):
        return

    (got,) = compare("conv_then", [*ins, *more], after=after, **attrs)

    assert np.array_equal(got, one_after_the_other("conv", ins, after, more, **attrs))


@given(case=convolutions(), after=st.sampled_from(CHAINS), vectors=st.integers(0, 1))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_so_has_a_transposed_one(case, after, vectors):
    shape, kernel, _, attrs = case
    rng = np.random.default_rng(0)
    specs = [Spec(s, np.dtype("float32")) for s in (shape, kernel)]
    (dy,) = primitive("conv").infer(specs, **attrs)
    ins = normal(rng, dy.shape, kernel)
    more = added(rng, shape, after, vectors)
    attrs = {**attrs, "size": shape[1:-1]}
    if refused("conv_grad_data", [*ins, *more], after, attrs):
        return

    (got,) = compare("conv_grad_data_then", [*ins, *more], after=after, **attrs)

    assert np.array_equal(got, one_after_the_other("conv_grad_data", ins, after, more, **attrs))


ATTRS = {"stride": (2, 2), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}


@pytest.mark.parametrize("name", ["conv_then", "conv_grad_data_then"])
def test_inputs_of_any_strides_give_the_same_bits(name):
    shapes = (2, 8, 8, 16), (16, 3, 3, 16), (2, 8, 8, 16), (16,)
    ins = normal(np.random.default_rng(0), *shapes)
    attrs = {**ATTRS, "stride": (1, 1), "after": (ADD, ADD, LEAK)}
    attrs = attrs if name == "conv_then" else {**attrs, "size": (8, 8)}
    assert program(name, ins, **attrs) is not None
    (want,) = run(name, ins, **attrs)

    for view in (every_second, np.asfortranarray, backwards):
        given_ = [view(a) for a in ins]
        assert np.array_equal(run(name, given_, **attrs)[0], want)
        assert np.array_equal(run_bound(name, given_, **attrs)[0], want)


def every_second(array):
    return np.repeat(array[..., None], 2, axis=-1)[..., 0]


def backwards(array):
    return array[::-1].copy()[::-1]


def test_what_is_not_a_number_stays_and_zeros_keep_their_sign():
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-39, -1e-39, -3e38], np.float32)
    x = np.tile(x.reshape(1, 8, 1), (1, 1, 16))
    weight = np.eye(16, dtype=np.float32)[:, None]
    attrs = {"stride": (1,), "padding": ((0, 0),), "dilation": (1,), "groups": 1}
    x[..., 1:] = 0  # else 0 times infinite

    (got,) = run("conv_then", [x, weight], after=(LEAK,), **attrs)
    want = one_after_the_other("conv", [x, weight], (LEAK,), [], **attrs)

    assert np.isnan(got[0, 0, 0])
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got[0, 1:]), np.signbit(want[0, 1:]))


@pytest.mark.parametrize("step", [("relu", ()), leaky(0.0), ("tanh", ()), ("multiply", ())])
def test_functions_that_hide_nan_and_others_are_not_taken(step):
    specs = [Spec(s, np.dtype("float32")) for s in ((2, 8, 8, 16), (16, 3, 3, 16))]

    assert primitive("conv").then(specs, (step,), **ATTRS) is None


def test_a_shape_that_cannot_be_added_is_refused():
    specs = [Spec(s, np.dtype("float32")) for s in ((2, 8, 8, 16), (16, 3, 3, 16), (8,))]

    with pytest.raises(ShapeError, match="to add float32"):
        primitive("conv_then").infer(specs, after=(ADD,), **ATTRS)
