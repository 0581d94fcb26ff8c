"""Elements chosen by index, and what is refused."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor, apply
from hpctrain.errors import ShapeError

pytestmark = pytest.mark.serial


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
        (lambda x: ops.take(x, x), "whole-number"),
        (lambda x: ops.pick(x, Tensor(np.array([1]))), "one index for each row"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(call, say):
    with pytest.raises(ShapeError, match=say):
        call(Tensor(np.ones((2, 3))))
