"""Recurrences whose steps are oneDNN's against those of NumPy."""

import numpy as np
import pytest
from two_kernels import kernels, needs_dnnl, poisoned, run

from hpctrain.autograd import Spec, primitive
from hpctrain.ops import gru_kernel, lstm_kernel

pytestmark = [pytest.mark.serial, needs_dnnl]
SIZES = [(3, 4, 5, 64), (5, 1, 3, 200), (2, 33, 7, 96), (1, 7, 4, 61)]


def draw(*shapes):
    rng = np.random.default_rng(3)
    return [(0.2 * rng.standard_normal(s)).astype(np.float32) for s in shapes]


def lstm_inputs(t, b, i, h):
    return draw((t, b, i), (b, h), (b, h), (4 * h, i), (4 * h, h), (4 * h,))


def lstm_gradient_inputs(t, b, i, h):
    given = lstm_inputs(t, b, i, h)
    with kernels("numpy"):
        *_, gates, cells = run("lstm", given)
    return [*draw((t, b, h), (b, h), (b, h)), given[2], given[4], gates, cells]


def gru_inputs(t, b, i, h):
    return draw((t, b, i), (b, h), (3 * h, i), (3 * h, h), (3 * h,), (3 * h,))


def gru_gradient_inputs(t, b, i, h):
    given = gru_inputs(t, b, i, h)
    with kernels("numpy"):
        y, _, gates, inner = run("gru", given)
    return [*draw((t, b, h), (b, h)), given[1], given[3], y, gates, inner]


INPUTS = {
    "lstm": lstm_inputs, "lstm_grad": lstm_gradient_inputs,
    "gru": gru_inputs, "gru_grad": gru_gradient_inputs,
}  # fmt: skip
PRODUCTS = [lstm_kernel.GATES, lstm_kernel.BACK, gru_kernel.GATES]


def both(name, arrays):
    """Return the results of oneDNN and of NumPy."""
    fast = run(name, arrays)
    with kernels("numpy"):
        return fast, run(name, arrays)


def assert_near(fast, slow):
    for have, want in zip(fast, slow, strict=True):
        scale = max(1, np.abs(want).max())
        np.testing.assert_allclose(have, want, rtol=0, atol=2e-6 * scale)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", INPUTS)
def test_results_are_those_of_numpy(name, sizes):
    assert_near(*both(name, INPUTS[name](*sizes)))


@pytest.mark.parametrize("product", PRODUCTS)
def test_small_steps_and_other_dtypes_are_left_to_numpy(product):
    assert product.scratch(4, Spec((384, 48), np.dtype(np.float32)))
    assert not product.scratch(3, Spec((384, 48), np.dtype(np.float32)))
    assert not product.scratch(4, Spec((384, 48), np.dtype(np.float64)))


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_weights_and_states_of_any_strides_are_right(name):
    given = INPUTS[name](3, 6, 5, 64)
    turned = [np.asfortranarray(a) for a in given]

    for have, want in zip(run(name, turned), run(name, given), strict=True):
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("provider", ["auto", "numpy"])
@pytest.mark.parametrize("name", ["lstm_grad", "gru_grad"])
def test_gradients_of_gates_may_be_written_over_the_gates(name, provider):
    given = INPUTS[name](3, 6, 5, 64)
    row, specs = primitive(name), [Spec.of(a) for a in given]
    with kernels(provider):
        apart = run(name, given)
        gates = given[5].copy()
        outs = [gates, *poisoned(row.infer(specs)[1:])]
        row.kernel(np, [*given[:5], gates, given[6]], outs, poisoned(row.scratch(specs)))

    for have, want in zip(outs, apart, strict=True):
        np.testing.assert_array_equal(have, want)
