import numpy as np
import pytest

from hpctrain.comm.encoding import BLOCK, blocks, check_decode, check_encode
from hpctrain.errors import ConfigError, ShapeError

pytestmark = pytest.mark.serial


def frozen(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("count", [0, 1, BLOCK, BLOCK + 1, 3 * BLOCK])
@pytest.mark.parametrize("start", [0, 1])
def test_blocks_cover_everything_once(count, start):
    places = [i for block in blocks(count, start) for i in range(count)[block]]

    assert places == list(range(start, count))


def test_gradients_in_float64_are_refused_with_the_way_out():
    with pytest.raises(ConfigError, match="fp16 got gradients of float64, needed float32"):
        check_encode("fp16", np.zeros(2), np.zeros(4, "u1"), 4)


@pytest.mark.parametrize(
    ("what", "values", "out", "residual"),
    [
        ("out", np.zeros(2, "f4"), np.zeros(3, "u1"), None),
        ("out", np.zeros(2, "f4"), np.zeros(4, "i1"), None),
        ("out", np.zeros(2, "f4"), np.zeros(8, "u1")[::2], None),
        ("out is read-only", np.zeros(2, "f4"), frozen(np.zeros(4, "u1")), None),
        ("values", np.zeros((1, 2), "f4"), np.zeros(4, "u1"), None),
        ("values", np.zeros(4, "f4")[::2], np.zeros(4, "u1"), None),
        ("residual", np.zeros(2, "f4"), np.zeros(4, "u1"), np.zeros(3, "f4")),
        ("residual", np.zeros(2, "f4"), np.zeros(4, "u1"), np.zeros(2, "f8")),
        ("residual is", np.zeros(2, "f4"), np.zeros(4, "u1"), frozen(np.zeros(2, "f4"))),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(what, values, out, residual):
    with pytest.raises(ShapeError, match=f"fp16: {what}"):
        check_encode("fp16", values, out, 4, residual)


@pytest.mark.parametrize(
    ("what", "data", "out"),
    [
        ("data", np.zeros(3, "u1"), np.zeros(2, "f4")),
        ("data", np.zeros(8, "u1")[::2], np.zeros(2, "f4")),
        ("out is read-only", np.zeros(4, "u1"), frozen(np.zeros(2, "f4"))),
    ],
)
def test_data_that_do_not_fit_are_refused_by_name(what, data, out):
    with pytest.raises(ShapeError, match=f"fp16: {what}"):
        check_decode("fp16", data, out, 4)


def test_encoded_data_may_be_read_only():
    check_decode("fp16", frozen(np.zeros(4, "u1")), np.zeros(2, "f4"), 4)
