"""Products, reductions, softmax and gathers against NumPy, and what they refuse."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor, apply
from hpctrain.errors import ShapeError
from hpctrain.ops.linalg import product

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

    product(np, ones, b, out)

    np.testing.assert_allclose(out, np.broadcast_to(b.sum(0), b.shape), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(1,), (700, 3), (2000,), (33, 1024), (0, 5), (4, 0)])
def test_dense_adds_its_bias_for_any_number_of_rows(shape):
    x = random(*shape, 4)
    w, b = random(3, 4), random(3)

    y = ops.dense(Tensor(x), Tensor(w), Tensor(b)).asnumpy()

    np.testing.assert_allclose(y, x @ w.T + b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("width", [1, 3, 16, 1100])
@pytest.mark.parametrize("rows", [1, 9, 525])
def test_sums_over_rows_are_right_for_every_width(width, rows):
    x = random(2, rows, width)

    np.testing.assert_allclose(ops.sum(Tensor(x), (0, 1)).asnumpy(), x.sum((0, 1)), atol=1e-10)
    np.testing.assert_allclose(ops.mean(Tensor(x), 1).asnumpy(), x.mean(1), atol=1e-12)
    y = ops.add(Tensor(x), Tensor(x[0, 0]))
    np.testing.assert_array_equal(y.asnumpy(), x + x[0, 0])


def test_whole_numbers_are_summed_in_int64_and_averaged_in_float32():
    hits = Tensor(np.array([True, False, True, True]))

    assert ops.sum(hits).asnumpy() == 3
    assert ops.sum(hits).dtype == np.int64
    assert ops.mean(hits).asnumpy() == np.float32(0.75)
    assert ops.mean(hits).dtype == np.float32


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 50_000, 2), (300, 7, 40)])
def test_softmax_adds_up_to_one_along_its_axis(shape, axis):
    x = random(*shape) * 30

    y = ops.softmax(Tensor(x), axis).asnumpy()
    z = ops.log_softmax(Tensor(x), axis).asnumpy()

    np.testing.assert_allclose(y.sum(axis), 1, rtol=1e-12)
    np.testing.assert_allclose(np.exp(z), y, rtol=1e-12)


def test_cross_entropy_of_many_rows_is_that_of_log_softmax():
    x = random(501, 307)
    labels = np.arange(501) % 307

    loss = ops.softmax_cross_entropy(Tensor(x), Tensor(labels)).asnumpy()

    want = -ops.log_softmax(Tensor(x)).asnumpy()[np.arange(501), labels]
    np.testing.assert_allclose(loss, want, rtol=1e-11)


@pytest.mark.parametrize("count", [0, 1, 500])
def test_gradient_of_an_embedding_adds_rows_of_equal_index(count):
    rng = np.random.default_rng(count)
    ids, dy = rng.integers(0, 37, count), rng.standard_normal((count, 6))
    want = np.zeros((40, 6))
    np.add.at(want, ids, dy)

    have = apply("take_grad", Tensor(dy), Tensor(ids), axis=0, length=40).asnumpy()

    np.testing.assert_allclose(have, want, atol=1e-12)


@pytest.mark.parametrize("bad", [-1, 5])
@pytest.mark.parametrize(
    "call",
    [
        lambda i: ops.embedding(i, Tensor(np.ones((5, 2)))),
        lambda i: ops.take(Tensor(np.ones((2, 5))), i, 1),
        lambda i: ops.pick(Tensor(np.ones((2, 5))), i),
        lambda i: ops.one_hot(i, 5),
        lambda i: ops.softmax_cross_entropy(Tensor(np.ones((2, 5))), i),
    ],
)
def test_an_index_out_of_range_is_refused(call, bad):
    with pytest.raises(ShapeError, match=f"got index {bad}, needed 0 to 4"):
        call(Tensor(np.array([1, bad])))


@pytest.mark.parametrize(
    ("call", "say"),
    [
        (lambda x: ops.matmul(x, x), "equal lengths of the summed axes, not 3 and 2"),
        (lambda x: ops.matmul(x.reshape(2, 1, 3), Tensor(np.ones((3, 3, 1)))), "broadcast"),
        (lambda x: ops.dense(x, x.T), "weight of shape"),
        (lambda x: ops.dense(x, x, Tensor(np.ones(3))), "bias"),
        (lambda x: ops.sum(x, 2), "axis 2"),
        (lambda x: ops.sum(x, (0, -2)), "at most once"),
        (lambda x: ops.max(x[:0], 0), "at least one element"),
        (lambda x: ops.argmax(x[:, :0], 1), "at least one element"),
        (lambda x: ops.take(x, x), "whole-number"),
        (lambda x: ops.pick(x, Tensor(np.array([1]))), "one index for each row"),
        (lambda x: ops.softmax_cross_entropy(x, Tensor(np.array([1]))), "labels"),
        (lambda x: ops.softmax_cross_entropy(x, x[:1]), "probabilities"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(call, say):
    with pytest.raises(ShapeError, match=say):
        call(Tensor(np.ones((2, 3))))
