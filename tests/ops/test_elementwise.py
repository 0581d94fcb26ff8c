"""Arithmetic: result dtypes, empty tensors, and what it refuses."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor
from hpctrain.errors import ShapeError

pytestmark = pytest.mark.serial


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


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_empty_tensors_and_scalars_are_tensors_like_others(shape):
    x = Tensor(np.ones(shape, np.float32))

    for y in (ops.gelu(x), x + 1, ops.where(x > 0, x, x), ops.erf(x), ops.relu(x) / x):
        assert y.spec == x.spec


@pytest.mark.parametrize(
    ("call", "say"),
    [
        (lambda x: ops.add(x, Tensor(np.ones(4))), "add: got float64.2,3. and float64.4."),
        (lambda x: ops.exp(Tensor(np.ones(2, np.int64))), "exp: got int64"),
        (lambda x: ops.negative(x > 0), "numbers"),
        (lambda x: ops.subtract(x > 0, x > 0), "not_equal"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(call, say):
    with pytest.raises(ShapeError, match=say):
        call(Tensor(np.ones((2, 3))))
