"""Recurrences whose steps are oneDNN's against those of NumPy."""

import numpy as np
import pytest
from two_kernels import kernels, needs_dnnl, poisoned, run

from hpctrain.autograd import Spec, primitive
from hpctrain.ops.lstm_kernel import BACK, GATES

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
@pytest.mark.parametrize(
    ("name", "inputs"), [("lstm", lstm_inputs), ("lstm_grad", lstm_gradient_inputs)]
)
def test_results_are_those_of_numpy(name, inputs, sizes):
    assert_near(*both(name, inputs(*sizes)))


@pytest.mark.parametrize("product", [GATES, BACK])
def test_small_steps_are_left_to_numpy(product):
    assert product.scratch(4, Spec((256, 64), np.dtype(np.float32)))
    assert not product.scratch(3, Spec((256, 64), np.dtype(np.float32)))
    assert not product.scratch(4, Spec((256, 64), np.dtype(np.float64)))


def test_weights_and_states_of_any_strides_are_right():
    given = lstm_inputs(3, 4, 5, 64)
    turned = [np.asfortranarray(a) for a in given]

    for have, want in zip(run("lstm", turned), run("lstm", given), strict=True):
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("provider", ["auto", "numpy"])
def test_gradients_of_gates_may_be_written_over_the_gates(provider):
    given = lstm_gradient_inputs(3, 4, 5, 64)
    row, specs = primitive("lstm_grad"), [Spec.of(a) for a in given]
    with kernels(provider):
        apart = run("lstm_grad", given)
        gates = given[5].copy()
        outs = [gates, *poisoned(row.infer(specs)[1:])]
        row.kernel(np, [*given[:5], gates, given[6]], outs, poisoned(row.scratch(specs)))

    for have, want in zip(outs, apart, strict=True):
        np.testing.assert_array_equal(have, want)
