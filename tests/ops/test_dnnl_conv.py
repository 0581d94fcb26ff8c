"""Convolutions of oneDNN against those of NumPy, on random shapes."""

import numpy as np
import pytest
from conv_shapes import convolutions, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from two_kernels import compare, needs_dnnl, program, run, run_bound

from hpctrain.autograd import Spec, primitive

pytestmark = [pytest.mark.serial, needs_dnnl]


@given(case=convolutions(), seed=st.integers(0, 999))
@settings(max_examples=120, deadline=None, derandomize=True, database=None)
def test_each_row_gives_what_numpy_gives(case, seed):
    shape, kernel, biased, attrs = case
    x, weight, bias = normal(np.random.default_rng(seed), shape, kernel, kernel[:1])
    (out,) = primitive("conv").infer([Spec.of(x), Spec.of(weight)], **attrs)
    (dy,) = normal(np.random.default_rng(seed + 1), out.shape)

    compare("conv", [x, weight, bias] if biased else [x, weight], **attrs)
    compare("conv_grad_data", [dy, weight], size=shape[1:-1], **attrs)
    compare("conv_grad_weight", [x, dy], limit=1e-5, kernel=kernel[1:-1], **attrs)


ATTRS = {"stride": (1, 2), "padding": ((1, 1), (0, 2)), "dilation": (1, 1), "groups": 1}


def views(array):
    """Return views with the same elements and other strides."""
    wide = np.repeat(array[..., None], 2, axis=-1)
    shifted = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    shifted[...] = array
    return {
        "every second": wide[..., 0],
        "transposed": np.array(array, order="F"),
        "backwards": array[:, ::-1].copy()[:, ::-1],
        "not aligned": shifted,
    }


@pytest.mark.parametrize("kind", ["every second", "transposed", "backwards", "not aligned"])
def test_inputs_of_any_strides_give_the_same_bits(kind):
    x, weight = normal(np.random.default_rng(1), (2, 7, 9, 5), (6, 3, 2, 5))
    (want,) = run("conv", [x, weight], **ATTRS)
    given = [views(a)[kind] for a in (x, weight)]

    assert np.array_equal(run("conv", given, **ATTRS)[0], want)
    assert np.array_equal(run_bound("conv", given, **ATTRS)[0], want)


def test_the_same_shapes_give_the_same_bits_again():
    x, dy = normal(np.random.default_rng(1), (32, 17, 17, 16), (32, 17, 9, 24))
    attrs = {**ATTRS, "kernel": (3, 3), "padding": ((1, 1), (1, 1))}

    first = run("conv_grad_weight", [x, dy], **attrs)
    again = run("conv_grad_weight", [x.copy(), dy.copy()], **attrs)

    assert np.array_equal(first[0], again[0])


@pytest.mark.parametrize("kind", ["float64", "empty", "negative padding"])
def test_what_the_library_lacks_is_left_to_numpy(kind):
    x, weight = normal(np.random.default_rng(1), (0 if kind == "empty" else 2, 7, 9, 5),
                       (6, 3, 2, 5))  # fmt: skip
    attrs = {**ATTRS, "padding": ((-1, 1), (0, 2))} if kind == "negative padding" else ATTRS
    if kind == "float64":
        x, weight = x.astype(np.float64), weight.astype(np.float64)

    assert program("conv", [x, weight], **attrs) is None
    (want,) = run("conv", [x, weight], **attrs)
    assert np.isfinite(want).all()
    assert np.array_equal(run_bound("conv", [x, weight], **attrs)[0], want)


def test_a_large_image_takes_a_compiled_kernel_in_every_direction():
    rng = np.random.default_rng(1)
    x, weight, dy = normal(rng, (2, 8, 8, 16), (16, 3, 3, 16), (2, 8, 8, 16))
    attrs = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}

    names = [
        program("conv", [x, weight], **attrs).names,
        program("conv_grad_data", [dy, weight], size=(8, 8), **attrs).names,
        program("conv_grad_weight", [x, dy], kernel=(3, 3), **attrs).names,
    ]

    assert not any(n.startswith(("ref", "gemm")) for made in names for n in made), names
