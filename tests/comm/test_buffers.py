import numpy as np
import pytest

from hpctrain import backend
from hpctrain.comm.buffers import Buffer, pieces


class FarArray:
    """An array that the host cannot reach but through the backend, as on a GPU."""

    def __init__(self, values):
        self.far = np.array(values)
        self.dtype, self.shape, self.size = self.far.dtype, self.far.shape, self.far.size
        self.flags = self.far.flags

    def __setitem__(self, key, value):
        assert isinstance(value, FarArray)
        self.far[key] = value.far

    asarray = classmethod(lambda cls, host: cls(host))


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setattr(backend, "to_host", lambda array: getattr(array, "far", array).copy())
    monkeypatch.setattr(backend, "module_of", lambda array: FarArray)
    return FarArray


@pytest.mark.parametrize("dtype", ["f4", "f2", "?"])
def test_arrays_on_a_device_pass_through_the_host(world, far, dtype):
    array = far(np.full((2, 3), world.rank == world.size - 1, dtype))
    whole = far(np.zeros((world.size, 2, 3), dtype))

    world.allreduce(array)
    world.iallreduce(array, "max").wait()
    world.bcast(array, 0)

    np.testing.assert_array_equal(array.far, np.ones((2, 3)))
    if world.size > 1:  # one rank copies on the device, without the host
        world.allgather(array, whole)
        np.testing.assert_array_equal(whole.far, np.ones((world.size, 2, 3)))


@pytest.mark.serial
def test_a_buffer_of_plain_numbers_is_the_array_itself():
    array = np.zeros((2, 3))

    Buffer("test", array).flat[:] = 1

    np.testing.assert_array_equal(array, 1)


@pytest.mark.serial
@pytest.mark.parametrize(("count", "limit"), [(0, 3), (1, 3), (3, 3), (7, 3), (8, 2**31 - 1)])
def test_pieces_cover_everything_once(count, limit):
    parts = pieces(count, limit)

    assert [i for part in parts for i in range(count)[part]] == list(range(count))
    assert len(parts) == -(-count // limit)
