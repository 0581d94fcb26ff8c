"""Arithmetic, comparisons and activations: dtypes, warnings, empty and odd inputs."""

import math
import warnings

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor
from hpctrain.errors import ShapeError

pytestmark = pytest.mark.serial
FAR = [-1e30, -800.0, -90.0, 0.0, 90.0, 800.0, 1e30]


@pytest.mark.parametrize(
    ("a", "b", "name", "dtype"),
    [
        ("float32", "float32", "add", "float32"),
        ("float32", "float64", "multiply", "float64"),
        ("int64", "int32", "subtract", "int64"),
        ("int64", "int64", "divide", "float32"),
        ("bool", "float32", "multiply", "float32"),
        ("float32", "int64", "less", "bool"),
    ],
)
def test_result_dtypes(a, b, name, dtype):
    x, y = Tensor(np.ones(3, a)), Tensor(np.ones((2, 1), b))

    assert getattr(ops, name)(x, y).spec == Tensor(np.ones((2, 3), dtype)).spec


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


def test_erf_is_that_of_the_c_library():
    x = np.concatenate([np.linspace(-7, 7, 5001), 10.0 ** np.arange(-300, 0)])
    want = np.array([math.erf(v) for v in x])

    np.testing.assert_allclose(ops.erf(Tensor(x)).asnumpy(), want, rtol=4e-15)
    short = ops.erf(Tensor(x.astype(np.float32))).asnumpy()
    want = np.array([math.erf(v) for v in x.astype(np.float32)])
    np.testing.assert_allclose(short, want, rtol=6e-7, atol=1e-44)


def test_relu_has_no_gradient_at_zero_of_either_sign():
    x = Tensor(np.array([-1.0, -0.0, 0.0, 2.0], np.float32))
    x.attach_grad()
    from_zero = ops.activations.apply("relu_grad", x * 0, ops.ones_like(x))

    assert from_zero.asnumpy().tolist() == [0, 0, 0, 0]


def test_where_takes_bits_as_they_are():
    a = Tensor(np.array([np.nan, 1, np.inf, -0.0], np.float32))
    b = Tensor(np.array([1, np.inf, np.nan, 5], np.float32))
    mask = Tensor(np.array([True, False, False, True]))

    y = ops.where(mask, a, b).asnumpy()

    np.testing.assert_array_equal(y, [np.nan, np.inf, np.nan, -0.0])
    assert np.signbit(y[3])


def test_where_mixes_dtypes_and_broadcasts():
    y = ops.where(Tensor(np.array([[True], [False]])), Tensor(np.arange(3)), 7)

    assert y.asnumpy().tolist() == [[0, 1, 2], [7, 7, 7]]
    assert y.dtype == np.int64


@pytest.mark.parametrize(
    ("call", "say"),
    [
        (lambda x: ops.add(x, Tensor(np.ones(4))), "add: got float64.2,3. and float64.4."),
        (lambda x: ops.exp(Tensor(np.ones(2, np.int64))), "exp: got int64"),
        (lambda x: ops.relu(Tensor(np.ones(2, np.int64))), "floating"),
        (lambda x: ops.negative(x > 0), "numbers"),
        (lambda x: ops.subtract(x > 0, x > 0), "not_equal"),
        (lambda x: ops.where(x, x, x), "bool"),
        (lambda x: ops.clip(x, 2, 1), "low <= high"),
        (lambda x: ops.leaky_relu(x, -1), "slope"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(call, say):
    with pytest.raises(ShapeError, match=say):
        call(Tensor(np.ones((2, 3))))


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_empty_tensors_and_scalars_are_tensors_like_others(shape):
    x = Tensor(np.ones(shape, np.float32))

    for y in (ops.gelu(x), x + 1, ops.where(x > 0, x, x), ops.erf(x), ops.relu(x) / x):
        assert y.spec == x.spec


def test_large_arrays_go_through_blocks_of_every_form():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 70, 333))

    for array in (x, x.T, x[:, ::2, 1:], np.broadcast_to(x[:1], x.shape)):
        y = ops.silu(Tensor(array)).asnumpy()
        np.testing.assert_allclose(y, array / (1 + np.exp(-array)), rtol=1e-12)
