"""Activations: limits without warnings, blocks of every form, and what they refuse."""

import warnings

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor, apply
from hpctrain.errors import ShapeError

pytestmark = pytest.mark.serial


FAR = [-1e30, -800.0, -90.0, 0.0, 90.0, 800.0, 1e30]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "name", ["relu", "sigmoid", "tanh", "softplus", "silu", "erf", "gelu", "leaky_relu"]
)
def test_activations_of_far_numbers_are_their_limits_without_warnings(name, dtype):
    limit = float(np.finfo(dtype).max) / 4
    x = np.clip(FAR, -limit, limit).astype(dtype)
    bounded = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "erf": (-1.0, 1.0)}

    with warnings.catch_warnings(), np.errstate(over="ignore" if name == "gelu" else "warn"):
        warnings.simplefilter("error")
        y = getattr(ops, name)(Tensor(x)).asnumpy()

    low, high = bounded.get(name, (x[0] * 0.01 if name == "leaky_relu" else 0.0, x[-1]))
    assert y.dtype == dtype
    np.testing.assert_allclose(
        y[[0, -1]], [low, high], rtol=2e-3, atol=1e-3 if dtype == "float16" else 1e-9
    )


def test_relu_has_no_gradient_at_zero_of_either_sign():
    x = Tensor(np.array([-1.0, -0.0, 0.0, 2.0], np.float32))
    x.attach_grad()
    from_zero = apply("relu_grad", x * 0, ops.ones_like(x))

    assert from_zero.asnumpy().tolist() == [0, 0, 0, 0]


def test_large_arrays_go_through_blocks_of_every_form():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 70, 333))

    for array in (x, x.T, x[:, ::2, 1:], np.broadcast_to(x[:1], x.shape)):
        y = ops.silu(Tensor(array)).asnumpy()
        np.testing.assert_allclose(y, array / (1 + np.exp(-array)), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "say"),
    [
        (lambda x: ops.relu(Tensor(np.ones(2, np.int64))), "floating"),
        (lambda x: ops.leaky_relu(x, -1), "slope"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(call, say):
    with pytest.raises(ShapeError, match=say):
        call(Tensor(np.ones((2, 3))))
