"""Normalisation against plain formulas in float64."""

import numpy as np
import pytest

from hpctrain.autograd import Tensor, check_gradients
from hpctrain.errors import ShapeError
from hpctrain.ops.layer_norm import layer_norm
from hpctrain.ops.norm import batch_norm, batch_norm_inference

pytestmark = pytest.mark.serial
SHAPES = [(7, 3), (2, 5, 4, 6), (70, 33, 16), (3, 1500), (40, 2000), (1, 5), (3, 1)]
LIMIT = {"float32": 1e-5, "float64": 1e-11}


def arrays(shape, dtype=np.float64, offset=0.0):
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape) * 3 + offset
    gamma, beta = rng.standard_normal((2, shape[-1]))
    return x.astype(dtype), gamma.astype(dtype), beta.astype(dtype)


def formula(x, gamma, beta, axes, eps):
    x = x.astype(np.float64)
    mean, var = x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * gamma + beta, mean, var


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batch_norm_is_the_formula(shape, dtype):
    x, gamma, beta = arrays(shape, dtype)

    y, mean, var = (t.asnumpy() for t in batch_norm(x, gamma, beta, 1e-3))

    expected = formula(x, gamma, beta, tuple(range(x.ndim - 1)), 1e-3)
    for got, want in zip((y, mean, var), expected, strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want.reshape(got.shape), 0, LIMIT[dtype] * 20)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_layer_norm_is_the_formula(shape, dtype):
    x, gamma, beta = arrays(shape, dtype)

    y, mean, rstd = (t.asnumpy() for t in layer_norm(x, gamma, beta, 1e-3))

    want, m, v = formula(x, gamma, beta, -1, 1e-3)
    np.testing.assert_allclose(y, want, 0, LIMIT[dtype] * 20)
    np.testing.assert_allclose(mean, m[..., 0], 0, LIMIT[dtype])
    np.testing.assert_allclose(rstd, 1 / np.sqrt(v[..., 0] + 1e-3), LIMIT[dtype])


def test_statistics_keep_their_digits_far_from_zero():
    x, gamma, beta = arrays((64, 32, 32, 16), np.float32, offset=100.0)

    _, mean, var = batch_norm(x, gamma, beta)

    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean.asnumpy(), exact.mean(axis=(0, 1, 2)), 1e-6)
    np.testing.assert_allclose(var.asnumpy(), exact.var(axis=(0, 1, 2)), 1e-5)


@pytest.mark.parametrize("shape", [(7, 3), (2, 5, 4, 6), (30, 50), (4, 1100)])
@pytest.mark.parametrize("norm", [batch_norm, layer_norm])
def test_gradients_agree_with_differences(norm, shape):
    check_gradients(norm, arrays(shape), order=2, tolerance=1e-5)


@pytest.mark.parametrize("norm", [batch_norm, layer_norm])
def test_gradients_of_the_result_alone_agree_with_differences(norm):
    check_gradients(lambda *a: norm(*a)[0], arrays((2, 5, 6)), order=2)


def test_inference_takes_the_given_statistics():
    x, gamma, beta = arrays((3, 40, 16))
    mean, var = np.linspace(-1, 1, 16), np.linspace(0.5, 2, 16)

    y = batch_norm_inference(x, gamma, beta, mean, var, 1e-3).asnumpy()

    np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 1e-3) * gamma + beta, 1e-10, 1e-12)
    check_gradients(batch_norm_inference, (x, gamma, beta, mean, var), order=2)


@pytest.mark.parametrize("norm", [batch_norm, layer_norm])
def test_inputs_of_any_strides_are_right(norm):
    x, gamma, beta = arrays((6, 7, 8))
    x, gamma = x[::2, ::-1].transpose(1, 2, 0), gamma[::3]

    got = norm(x, gamma, beta[:3])
    want = norm(np.ascontiguousarray(x), gamma.copy(), beta[:3])

    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())


@pytest.mark.parametrize("norm", [batch_norm, layer_norm])
@pytest.mark.parametrize("shape", [(0, 3), (0, 4, 3)])
def test_an_empty_batch_stays_empty(norm, shape):
    y = norm(np.zeros(shape), np.ones(3), np.zeros(3))[0]

    assert y.shape == shape
    check_gradients(lambda *a: norm(*a)[0], (np.zeros(shape), np.ones(3), np.zeros(3)))


def test_vectors_of_another_length_are_refused():
    for norm in (batch_norm, layer_norm):
        with pytest.raises(ShapeError, match="vectors of C"):
            norm(np.zeros((2, 3)), np.ones(4), np.zeros(3))


def test_a_single_row_has_no_variance():
    x, gamma, beta = arrays((1, 5))

    y, _, var = batch_norm(x, Tensor(gamma), beta)

    np.testing.assert_allclose(var.asnumpy(), 0)
    np.testing.assert_allclose(y.asnumpy()[0], beta)
