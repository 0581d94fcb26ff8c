"""Tensors behave like NumPy arrays, with float32 as the plain float."""

import operator

import numpy as np
import pytest

from hpctrain import ops  # noqa: F401 (fills the table)
from hpctrain.autograd import Tensor, record
from hpctrain.backend import Device
from hpctrain.errors import ShapeError

pytestmark = pytest.mark.serial


def test_python_floats_become_float32_and_arrays_keep_their_dtype():
    assert Tensor([1.0, 2.0]).dtype == np.float32
    assert Tensor(3).dtype == np.int64
    assert Tensor(np.zeros(2)).dtype == np.float64
    assert Tensor(np.zeros(2, np.float16), dtype="float64").dtype == np.float64


def test_an_array_that_fits_is_not_copied():
    array = np.zeros(3)

    assert Tensor(array).array is array


@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "truediv", "pow", "lt", "ge", "eq", "ne"]
)
def test_operators_are_those_of_numpy(name):
    function = getattr(operator, name)
    a, b = np.array([1.0, 2.0, 4.0]), np.array([3.0, 2.0, 0.5])

    np.testing.assert_allclose(function(Tensor(a), Tensor(b)).asnumpy(), function(a, b))
    np.testing.assert_allclose(function(Tensor(a), 2.0).asnumpy(), function(a, 2.0))
    np.testing.assert_allclose(function(Tensor(a), b).asnumpy(), function(a, b))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
def test_operators_work_from_the_right(name):
    function = getattr(operator, name)
    a, b = np.array([1.0, 2.0, 4.0]), np.array([3.0, 2.0, 0.5])

    np.testing.assert_allclose(function(b, Tensor(a)).asnumpy(), function(b, a))
    np.testing.assert_allclose(function(2.0, Tensor(a)).asnumpy(), function(2.0, a))


KEYS = [
    1, -1, slice(1, 3), slice(None, None, 2), ..., (..., 1), (1, ..., 2), (slice(None), -1),
    (0, 1, 2), (slice(2, 1), 0), np.int64(2), (slice(-3, None), ..., slice(0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_basic_indices_are_those_of_numpy(key):
    x = np.arange(60.0).reshape(3, 4, 5)

    np.testing.assert_array_equal(Tensor(x)[key].asnumpy(), x[key])


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (3, "got 3 on axis 0 of length 3"),
        (-4, "got -4 on axis 0"),
        ((0, 0, 0, 0), "got 4 indices, needed at most 3"),
        (slice(None, None, -1), "got step -1 on axis 0"),
        (True, "got True on axis 0"),
        ([0, 1], r"got \[0, 1\] on axis 0"),
        ((np.array([0, 1]), ...), "use take for arrays of indices"),
        (Tensor(np.array([0, 1])), "use take for arrays of indices"),
    ],
    ids=str,
)
def test_other_indices_are_refused_in_a_sentence(key, words):
    with pytest.raises(ShapeError, match=words):
        Tensor(np.zeros((3, 4, 5)))[key]


def test_a_tensor_of_one_element_is_a_number():
    x = Tensor(np.array([[2.5]]))

    assert (float(x), int(x), bool(x), x.asscalar()) == (2.5, 2, True, 2.5)


def test_a_tensor_of_several_is_none():
    with pytest.raises(ShapeError, match=r"got shape \(2,\), needed one element"):
        bool(Tensor(np.ones(2)))


def test_methods_reduce_and_move():
    x = np.arange(24.0).reshape(2, 3, 4)
    t = Tensor(x)

    np.testing.assert_array_equal(t.sum(axis=(-1, 0)).asnumpy(), x.sum((0, 2)))
    np.testing.assert_array_equal(t.mean(1, keepdims=True).asnumpy(), x.mean(1, keepdims=True))
    np.testing.assert_array_equal(t.max().asnumpy(), 23)
    np.testing.assert_array_equal(t.T.asnumpy(), x.T)
    np.testing.assert_array_equal(t.transpose(1, 0, 2).asnumpy(), x.transpose(1, 0, 2))
    np.testing.assert_array_equal(t.reshape(-1, 4).asnumpy(), x.reshape(-1, 4))
    np.testing.assert_array_equal(
        (t @ t.transpose(0, 2, 1)).asnumpy(), x @ x.transpose(0, 2, 1)
    )
    assert (len(t), t.ndim, t.size, t.astype("float32").dtype) == (2, 3, 24, np.float32)


def test_elements_can_be_set():
    x = Tensor(np.zeros(4))
    x[1:3] = Tensor(np.ones(2))
    x[0] = 5

    np.testing.assert_array_equal(x.asnumpy(), [5, 1, 1, 0])


def test_a_copy_goes_across_devices():
    a, b = Tensor(np.ones(3)), Tensor(np.zeros(3), device=Device("cpu", 1))

    assert a.copyto(b) is b
    np.testing.assert_array_equal(b.asnumpy(), 1)
    assert a.as_in_context(a.device) is a
    assert a.as_in_context(b.device).device == b.device


def test_the_text_shows_elements_shape_and_device():
    assert repr(Tensor([1.5])) == "[1.5]\n<Tensor float32[1] @cpu>"


def test_tensors_are_hashed_by_identity():
    a, b = Tensor(np.ones(2)), Tensor(np.ones(2))

    assert len({a, b, a}) == 2


def test_detach_cuts_the_tape_and_shares_memory():
    x = Tensor(np.ones(2))
    x.attach_grad()
    with record():
        y = x * 3.0
        z = (y.detach() * x).sum()
    z.backward()

    assert np.shares_memory(y.detach().array, y.array)
    np.testing.assert_array_equal(x.grad.asnumpy(), 3.0)


def test_an_unknown_way_of_keeping_gradients_is_refused():
    with pytest.raises(ShapeError, match="got 'sum', needed write, add or null"):
        Tensor(np.ones(2)).attach_grad("sum")
