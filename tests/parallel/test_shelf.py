"""Arrays in a file: what was put there comes back, each time."""

import numpy as np
import pytest

from hpctrain.parallel.shelf import Shelf

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1", "?"])
def test_arrays_come_back_from_the_file_in_any_order(tmp_path, dtype):
    rng = np.random.default_rng(0)
    arrays = [(rng.random(shape) * 5).astype(dtype) for shape in [(), (7,), (0, 3), (3, 4, 5)]]
    shelf = Shelf(tmp_path / "new")

    kept = [shelf.add(array) for array in arrays]

    for array, found in [*zip(arrays, kept, strict=True)][::-1]:
        assert (found.shape, found.dtype, found.ndim) == (array.shape, array.dtype, array.ndim)
        assert (found.size, found.itemsize) == (array.size, array.itemsize)
        np.testing.assert_array_equal(np.asarray(found), array)
        np.testing.assert_array_equal(found.copy(), array)
    assert len(kept[3]) == 3
    np.testing.assert_array_equal(kept[3][1], arrays[3][1])
    assert not list((tmp_path / "new").iterdir()), "the file has no name"
