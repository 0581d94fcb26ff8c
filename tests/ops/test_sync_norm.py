"""Batch statistics merged from parts, against NumPy on the whole in float64."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor, backward, check_gradients, record
from hpctrain.errors import ShapeError
from hpctrain.ops.sync_moments import add_parts, merge_moments

pytestmark = pytest.mark.serial
SHAPES = [(7, 3), (2, 5, 4, 6), (70, 33, 16), (40, 2000), (1, 5), (3, 1), (0, 4)]


def arrays(shape, dtype=np.float64, offset=0.0):
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape) + offset
    return [a.astype(dtype) for a in (x, *rng.standard_normal((2, shape[-1])))]


def differentiated(norm, x, gamma, beta, dy):
    tensors = [Tensor(a) for a in (x, gamma, beta)]
    for tensor in tensors:
        tensor.attach_grad()
    with record():
        y, mean, var = norm(*tensors, 1e-3)
    backward(y, Tensor(dy))
    return [t.asnumpy() for t in (y, mean, var, *(t.grad for t in tensors))]


def formula(x, gamma, beta, dy):
    """Return what `differentiated` does, by the textbook's formulas."""
    x, gamma, beta, dy = (a.astype(np.float64) for a in (x, gamma, beta, dy))
    axes, n = tuple(range(x.ndim - 1)), x.size // x.shape[-1]
    mean, var = x.mean(axes), x.var(axes)
    rstd = (var + 1e-3) ** -0.5
    hat = (x - mean) * rstd
    dgamma, dbeta = (dy * hat).sum(axes), dy.sum(axes)
    dx = gamma * rstd * (dy - dbeta / n - hat * dgamma / n)
    return hat * gamma + beta, mean, var, dx, dgamma, dbeta


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-12), ("float32", 1e-5)])
def test_one_process_normalises_as_ever(shape, dtype, limit):
    x, gamma, beta = arrays(shape, dtype)
    dy = np.random.default_rng(5).standard_normal(shape).astype(dtype)

    got = differentiated(ops.sync_batch_norm, x, gamma, beta, dy)
    want = differentiated(ops.batch_norm, x, gamma, beta, dy)

    for have, plain in zip(got, want, strict=True):
        assert have.dtype == dtype
        scale = max(1, np.abs(plain).max(initial=0))
        np.testing.assert_allclose(have, plain, 0, limit * scale)


@pytest.mark.parametrize("shape", [(64, 16, 16, 16), (300, 40)])
def test_numbers_far_from_zero_keep_their_digits(shape):
    """The dtype holds x to 5e-4 here, and a mean no better; what is made of them is exact."""
    x, gamma, beta = arrays(shape, np.float32, offset=1e4)
    dy = np.random.default_rng(5).standard_normal(shape).astype(np.float32)

    got = differentiated(ops.sync_batch_norm, x, gamma, beta, dy)

    for have, want in zip(got, formula(x, gamma, beta, dy), strict=True):
        np.testing.assert_allclose(have, want, 2e-6, 2e-6 * np.abs(want).max())


def test_a_misleading_first_guess_is_corrected():
    """All blocks that the guess does not read are elsewhere."""
    x = np.full((2**17, 4), 1e3)
    x[: 2**14] = np.random.default_rng(1).standard_normal((2**14, 4))

    got = differentiated(ops.sync_batch_norm, x, np.ones(4), np.zeros(4), np.ones(x.shape))

    exact = x.astype(np.longdouble)  # NumPy's sum along the first axis loses 5 digits here
    np.testing.assert_allclose(got[1], exact.mean(0), 1e-13)
    np.testing.assert_allclose(got[2], exact.var(0), 1e-13)


@pytest.mark.parametrize("cuts", [(3,), (1, 2), (0, 0, 5), (4, 4), (7,)])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_moments_of_parts_make_those_of_the_whole(cuts, offset):
    x = np.random.default_rng(3).standard_normal((7, 4)) + offset
    rows = [
        (np.full(4, len(p)), p.mean(0), ((p - p.mean(0)) ** 2).sum(0))
        if len(p)
        else np.zeros((3, 4))
        for p in np.split(x, cuts)
    ]

    n, mean, m2 = merge_moments(np.array(rows, np.float64))

    np.testing.assert_array_equal(n, 7)
    np.testing.assert_allclose(mean, x.mean(0), 1e-15)
    np.testing.assert_allclose(m2, 7 * x.var(0), 1e-13, 1e-15 * offset)


def test_moments_of_nothing_are_zeros():
    np.testing.assert_array_equal(merge_moments(np.zeros((3, 3, 2))), 0)


def test_gradients_agree_with_differences_with_two_equal_processes():
    """A second process with the same part changes no mean, so the differences are known."""

    def twice(array, merge):
        return merge(np.stack([array, array]))

    def both(x, gamma, beta):
        y, mean, var = ops.sync_batch_norm(x, gamma, beta, 1e-3, twice)
        return ops.square(y), mean, var

    def alone(x, gamma, beta):
        y, mean, var = ops.batch_norm(x, gamma, beta, 1e-3)
        return ops.square(y), mean, var

    check_gradients(alone, arrays((5, 3)), order=2)
    values, grads = [], []
    for function in (alone, both):
        tensors = [Tensor(a) for a in arrays((5, 3))]
        for tensor in tensors:
            tensor.attach_grad()
        with record():
            outputs = function(*tensors)
            total = sum(((o * o).sum() for o in outputs), Tensor(0.0))
        total.backward()
        values.append([o.asnumpy() for o in outputs])
        grads.append([t.grad.asnumpy() for t in tensors])

    for one, two in zip(values[0] + grads[0], values[1] + grads[1], strict=True):
        np.testing.assert_allclose(two, one, 1e-10, 1e-12)
    np.testing.assert_array_equal(add_parts(np.ones((2, 3))), 2)


def test_vectors_of_another_length_are_refused():
    with pytest.raises(ShapeError, match=r"sync_batch_norm: .* vectors of C"):
        ops.sync_batch_norm(np.zeros((2, 3)), np.ones(4), np.zeros(3))
