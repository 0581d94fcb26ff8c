"""Products of matrices of any strides, and what they refuse."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor
from hpctrain.errors import ShapeError
from hpctrain.ops.linalg import bound_product

pytestmark = pytest.mark.serial


def random(*shape, dtype=np.float64):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def forms(array):
    """Yield the same matrix with other strides."""
    yield array
    yield np.asfortranarray(array)
    yield np.repeat(array, 2, axis=1)[:, ::2]
    yield np.repeat(array, 2, axis=0)[::2]
    yield array[::-1][::-1]
    yield np.ascontiguousarray(array[:, ::-1])[:, ::-1]


def test_products_take_matrices_of_any_strides():
    a, b = random(6, 5), random(5, 7)

    for left in forms(a):
        for right in forms(b):
            y = ops.matmul(Tensor(left), Tensor(right)).asnumpy()
            np.testing.assert_allclose(y, a @ b, rtol=1e-12)


def test_a_broadcast_matrix_goes_through_blas_too():
    ones = np.broadcast_to(np.float32(1), (300, 300))
    b = random(300, 300, dtype=np.float32)
    out = np.empty((300, 300), np.float32)

    bound_product(np, ones, b, out)()

    np.testing.assert_allclose(out, np.broadcast_to(b.sum(0), b.shape), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(1,), (700, 3), (2000,), (33, 1024), (0, 5), (4, 0)])
def test_dense_adds_its_bias_for_any_number_of_rows(shape):
    x = random(*shape, 4)
    w, b = random(3, 4), random(3)

    y = ops.dense(Tensor(x), Tensor(w), Tensor(b)).asnumpy()

    np.testing.assert_allclose(y, x @ w.T + b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "say"),
    [
        (lambda x: ops.matmul(x, x), "equal lengths of the summed axes, not 3 and 2"),
        (lambda x: ops.matmul(x.reshape(2, 1, 3), Tensor(np.ones((3, 3, 1)))), "broadcast"),
        (lambda x: ops.dense(x, x.T), "weight of shape"),
        (lambda x: ops.dense(x, x, Tensor(np.ones(3))), "bias"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(call, say):
    with pytest.raises(ShapeError, match=say):
        call(Tensor(np.ones((2, 3))))
