"""The one door: devices, dtypes of plain numbers, assignments."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor, apply, as_tensor, assign, record
from hpctrain.backend import Device
from hpctrain.errors import ShapeError

pytestmark = pytest.mark.serial
OTHER = Device("cpu", 1)


def test_tensors_of_two_devices_do_not_mix():
    with pytest.raises(ShapeError, match=r"add: got tensors on cpu\(0\) and cpu\(1\)"):
        Tensor(np.ones(2)) + Tensor(np.ones(2), device=OTHER)


def test_results_gradients_and_numbers_stay_on_the_device():
    x = Tensor(np.ones(2), device=OTHER)
    x.attach_grad()
    with record():
        y = (2.0 * x + [1.0, 2.0]).sum()
    y.backward()

    assert (y.device, x.grad.device) == (OTHER, OTHER)


@pytest.mark.parametrize("number", [2, 2.0, True, np.float64(2), np.int64(2), [1.0, 2.0]])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_plain_numbers_do_not_change_a_floating_dtype(number, dtype):
    x = Tensor(np.ones(2, dtype))

    for result in (
        x * number,
        number * x if not isinstance(number, np.generic) else x - number,
    ):
        assert result.dtype == dtype


@pytest.mark.parametrize(
    ("dtype", "number", "expected"),
    [
        (np.int32, 2, np.int32),
        (np.uint8, 3, np.uint8),
        (np.int64, 0.5, np.float32),
        (np.int64, [0.5, 0.25], np.float32),
        (np.bool_, 2, np.int64),
        (np.bool_, True, np.bool_),
    ],
)
def test_a_number_that_the_dtype_cannot_hold_gets_its_own(dtype, number, expected):
    like = Tensor(np.ones(2, dtype))

    made = as_tensor(number, like=like)

    assert made.dtype == expected
    np.testing.assert_array_equal(made.asnumpy(), number)


def test_a_number_out_of_range_is_not_wrapped():
    with pytest.raises(OverflowError):
        Tensor(np.ones(2, np.uint8)) + 300


def test_arrays_keep_their_dtype():
    assert (Tensor(np.ones(2, np.float32)) + np.ones(2)).dtype == np.float64


def test_what_is_no_number_is_refused():
    with pytest.raises(ShapeError, match="needed numbers"):
        Tensor(np.ones(2)) + "2"


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ShapeError, match=r"add: got float64\[2\] and float64\[3\]"):
        Tensor(np.ones(2)) + Tensor(np.ones(3))


def test_assign_copies_the_elements():
    state, new = Tensor(np.zeros(3)), Tensor(np.arange(3.0))
    array = state.array

    assign(state, new)
    new[0] = 7

    assert state.array is array
    np.testing.assert_array_equal(array, [0, 1, 2])


def test_assign_wants_the_same_shape_and_dtype():
    with pytest.raises(ShapeError, match=r"got float32\[2\] for a tensor of float64\[2\]"):
        assign(Tensor(np.zeros(2)), Tensor(np.zeros(2, np.float32)))


def test_one_output_is_a_tensor_and_several_are_a_tuple():
    x = Tensor(np.ones((2, 3)))

    assert isinstance(apply("exp", x), Tensor)
    assert isinstance(ops.split(x, 3, axis=1), tuple)


def test_nothing_is_recorded_without_record():
    x = Tensor(np.ones(2))
    x.attach_grad()

    assert (x * 2.0).creator is None
    with record():
        assert (x * 2.0).creator is not None
        assert (Tensor(np.ones(2)) * 2.0).creator is None
