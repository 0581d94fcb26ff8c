"""Parameters: copies, shapes that become known, and tensors that stay."""

import numpy as np
import pytest

from hpctrain.autograd import Tensor, backward, record
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.nn import Parameter, cpu

pytestmark = pytest.mark.serial


def made(**args):
    parameter = Parameter("w", (2, 3), init="normal", **args)
    parameter.initialize()
    return parameter


def test_a_value_depends_on_the_key_and_not_on_the_device_or_the_order():
    one, two = Parameter("a", (4,), init="normal"), Parameter("b", (4,), init="normal")
    two.initialize(ctx=[cpu(1), cpu(0)], seed=3, key="x.weight")
    one.initialize(seed=3, key="x.weight")

    for copy in two.list_data():
        np.testing.assert_array_equal(copy.asnumpy(), one.data().asnumpy())


def test_copies_share_nothing():
    parameter = Parameter("w", (2,), init="ones")
    parameter.initialize(ctx=[cpu(0), cpu(1)])

    parameter.data(cpu(1))[:] = 5

    np.testing.assert_array_equal(parameter.data(cpu(0)).asnumpy(), 1)
    assert parameter.list_ctx() == [cpu(0), cpu(1)]
    assert [t.device for t in parameter.list_data()] == [cpu(0), cpu(1)]


def test_gradients_arrive_in_storage_that_was_put_in_from_outside():
    parameter = made()
    flat, grads = np.arange(6, dtype=np.float32), np.zeros(6, np.float32)
    weight = parameter.data()

    weight.value, weight.grad.value = flat.reshape(2, 3), grads.reshape(2, 3)
    with record():
        loss = (parameter.data() * parameter.data()).sum()
    backward(loss)

    np.testing.assert_array_equal(grads, 2 * flat)
    assert parameter.data() is weight
    assert parameter.grad() is weight.grad


def test_writing_keeps_the_storage():
    parameter = made()
    tensor, array = parameter.data(), parameter.data().array

    parameter.set_data(np.ones((2, 3)))
    parameter.initialize(init="zeros", seed=9, force_reinit=True)

    assert parameter.data() is tensor
    assert parameter.data().array is array


def test_a_second_initialize_changes_nothing_unless_forced():
    parameter = made()
    before = parameter.data().asnumpy().copy()

    parameter.initialize(seed=1)
    np.testing.assert_array_equal(parameter.data().asnumpy(), before)

    parameter.initialize(seed=1, force_reinit=True)
    assert not np.allclose(parameter.data().asnumpy(), before)


def test_an_unknown_length_waits_and_gives_the_same_value():
    late, early = Parameter("w", (2, 0), init="normal"), made()

    late.initialize()
    with pytest.raises(ShapeError, match="the first forward pass"):
        late.data()
    late.complete((2, 3))

    np.testing.assert_array_equal(late.data().asnumpy(), early.data().asnumpy())


def test_a_shape_that_contradicts_is_refused():
    parameter = Parameter("w", (2, 0))
    parameter.initialize()

    with pytest.raises(
        ShapeError, match=r"got shape \(3, 3\) for a parameter of shape \(2, 0\)"
    ):
        parameter.complete((3, 3))
    with pytest.raises(ShapeError, match=r"got shape \(2, 3, 1\)"):
        parameter.set_data(np.zeros((2, 3, 1)))


def test_set_data_creates_what_was_not_initialized():
    parameter = Parameter("w", (0, 3))

    parameter.set_data([[1, 2, 3]], ctx=cpu(1))

    assert parameter.shape == (1, 3)
    assert parameter.list_ctx() == [cpu(1)]
    assert parameter.data().dtype == np.float32


def test_what_is_missing_is_named():
    parameter = Parameter("w", (2,))
    with pytest.raises(ShapeError, match="w: is not initialized"):
        parameter.data()

    parameter.initialize(ctx=[cpu(0), cpu(1)])
    with pytest.raises(
        ShapeError, match=r"got an input on cpu\(2\), needed cpu\(0\), cpu\(1\)"
    ):
        parameter.data(cpu(2))


def test_state_has_no_gradient():
    state = Parameter("s", (2,), differentiable=False)
    state.initialize()

    assert state.grad_req == "null"
    with pytest.raises(ShapeError, match="keeps no gradient"):
        state.grad()
    with pytest.raises(ConfigError, match="not learned"):
        state.grad_req = "write"


def test_gradients_are_switched_and_cleared_in_place():
    parameter = made()
    grad = parameter.grad()
    grad[:] = 3

    parameter.grad_req = "add"
    assert parameter.grad() is grad
    parameter.zero_grad()
    np.testing.assert_array_equal(grad.asnumpy(), 0)

    parameter.grad_req = "null"
    assert parameter.data().grad is None
    parameter.grad_req = "write"
    assert parameter.grad().shape == (2, 3)


def test_cast_changes_the_tensors_that_are_there():
    parameter = made()
    tensor, before = parameter.data(), parameter.data().asnumpy()

    parameter.cast("float64")

    assert parameter.data() is tensor
    assert tensor.dtype == tensor.grad.dtype == tensor.array.dtype == np.float64
    np.testing.assert_array_equal(tensor.asnumpy(), before)


def test_moving_takes_the_values_along():
    parameter = made()
    before = parameter.data().asnumpy().copy()

    parameter.reset_ctx([cpu(1), cpu(2)])

    assert parameter.list_ctx() == [cpu(1), cpu(2)]
    np.testing.assert_array_equal(parameter.data(cpu(2)).asnumpy(), before)


def test_set_data_takes_tensors():
    parameter = made()

    parameter.set_data(Tensor(np.full((2, 3), 2.0)))

    np.testing.assert_array_equal(parameter.data().asnumpy(), 2)
