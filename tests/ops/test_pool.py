"""Pooling against loops over every window, in float64."""

import itertools

import numpy as np
import pytest

from hpctrain.autograd import Tensor, apply, check_gradients, grad, record
from hpctrain.errors import ShapeError
from hpctrain.ops.pool import avg_pool, global_mean, max_pool

pytestmark = pytest.mark.serial

# x, kernel, stride, padding
CASES = {
    "1-D": ((2, 9, 3), 2, None, 0),
    "2x2": ((3, 6, 8, 4), 2, None, 0),
    "2x2 with rests": ((3, 7, 9, 4), 2, None, 0),
    "3x3 stride 2 padded": ((2, 8, 9, 3), 3, 2, 1),
    "overlapping": ((2, 6, 7, 3), 3, 1, 0),
    "pairs": ((2, 6, 7, 3), (2, 3), (2, 1), ((0, 1), (2, 0)), ),
    "one axis only": ((2, 6, 7, 3), (1, 3), (1, 3), 0),
    "ones with stride": ((2, 6, 7, 3), 1, 2, 0),
    "stride beyond kernel": ((2, 11, 10, 3), 2, 3, 0),
    "3-D": ((2, 4, 6, 8, 3), 2, None, 0),
    "3-D overlapping": ((1, 5, 6, 5, 2), (3, 2, 3), (1, 2, 2), 1),
    "large window": ((1, 20, 19, 2), (18, 17), 1, 0),
    "empty batch": ((0, 4, 4, 3), 2, None, 0),
}  # fmt: skip


def walk(x, kernel, stride, padding, fill):
    """Yield the result place and the window under it, (N, prod(kernel), C)."""
    space = x.ndim - 2
    kernel = np.broadcast_to(kernel, space)
    stride = kernel if stride is None else np.broadcast_to(stride, space)
    pads = ((padding, padding),) * space if np.isscalar(padding) else padding
    x = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=fill)
    out = [(n - k) // s + 1 for n, k, s in zip(x.shape[1:-1], kernel, stride, strict=True)]
    for at in itertools.product(*map(range, out)):
        axes = zip(at, stride, kernel, strict=True)
        part = x[(slice(None), *(slice(a * s, a * s + k) for a, s, k in axes))]
        yield at, part.reshape(x.shape[0], int(np.prod(kernel)), x.shape[-1])


def values(case, dtype=np.float64):
    """All different, so that differences do not move a maximum to another place."""
    shape = CASES[case][0]
    count = int(np.prod(shape))
    return np.random.default_rng(1).permutation(count).reshape(shape).astype(dtype) / 8


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_maximum_and_its_place_are_those_of_each_window(case, dtype):
    x = values(case, dtype)

    y, index = max_pool(x, *CASES[case][1:])

    assert y.dtype == dtype
    for at, part in walk(x, *CASES[case][1:], -np.inf):
        place = (slice(None), *at)
        np.testing.assert_array_equal(y.asnumpy()[place], part.max(axis=1))
        np.testing.assert_array_equal(index.asnumpy()[place], part.argmax(axis=1))


@pytest.mark.parametrize("case", CASES)
def test_the_first_of_equal_elements_wins(case):
    x = np.random.default_rng(3).integers(-1, 1, CASES[case][0]).astype(float)

    index = max_pool(x, *CASES[case][1:])[1].asnumpy()

    for at, part in walk(x, *CASES[case][1:], -np.inf):
        np.testing.assert_array_equal(index[(slice(None), *at)], part.argmax(axis=1))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("include", [True, False])
def test_average_is_that_of_each_window(case, include):
    x = values(case)

    y = avg_pool(x, *CASES[case][1:], count_include_pad=include).asnumpy()

    for at, part in walk(x, *CASES[case][1:], 0.0 if include else np.nan):
        expected = part.mean(axis=1) if include else np.nanmean(part, axis=1)
        np.testing.assert_allclose(y[(slice(None), *at)], expected, rtol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_gradient_of_the_maximum_agrees_with_differences(case):
    check_gradients(lambda x: max_pool(x, *CASES[case][1:])[0], [values(case)], order=2)


@pytest.mark.parametrize("case", CASES)
def test_gradient_of_the_maximum_is_linear_both_ways(case):
    x = Tensor(values(case))
    y, index = max_pool(x, *CASES[case][1:])
    attrs = {"size": x.shape[1:-1], **_attrs(case)}
    dy = np.random.default_rng(4).standard_normal(y.shape)

    check_gradients(lambda g: apply("max_pool_grad", g, index, **attrs), [dy], order=2)


def _attrs(case):
    shape, kernel, stride, padding = CASES[case]
    space = len(shape) - 2
    kernel = (kernel,) * space if np.isscalar(kernel) else kernel
    stride = kernel if stride is None else (stride,) * space if np.isscalar(stride) else stride
    pads = ((padding, padding),) * space if np.isscalar(padding) else padding
    return {"kernel": kernel, "stride": stride, "padding": pads}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("include", [True, False])
def test_gradient_of_the_average_agrees_with_differences(case, include):
    check_gradients(
        lambda x: avg_pool(x, *CASES[case][1:], count_include_pad=include),
        [values(case)],
        order=2,
    )


@pytest.mark.parametrize("kernel, stride", [(2, 2), (3, 2), (3, 3)])
def test_many_groups_give_what_one_group_gives(kernel, stride, monkeypatch):
    x = np.random.default_rng(5).standard_normal((9, 12, 11, 3)).astype("float32")

    def run():
        a = Tensor(x)
        a.attach_grad()
        with record():
            y, mean = max_pool(a, kernel, stride, 1)[0], avg_pool(a, kernel, stride, 1)
        return [y, mean, *grad([y, mean], [a], [mean, y])]

    monkeypatch.setattr("hpctrain.ops.windows.BLOCK_BYTES", 20_000)
    many = run()
    monkeypatch.setattr("hpctrain.ops.windows.BLOCK_BYTES", 1 << 40)
    for got, expected in zip(many, run(), strict=True):
        np.testing.assert_array_equal(got.asnumpy(), expected.asnumpy())


def test_inputs_of_any_strides_are_right():
    x = np.random.default_rng(6).standard_normal((4, 7, 6, 12))[::2, :, ::-1, ::3]
    x = x.transpose(0, 2, 1, 3)

    for pool in (lambda a: max_pool(a, 2)[0], lambda a: avg_pool(a, 3, 2, 1)):
        expected = pool(np.ascontiguousarray(x)).asnumpy()
        np.testing.assert_array_equal(pool(x).asnumpy(), expected)


def test_a_nan_is_not_hidden():
    x = np.zeros((1, 4, 1))
    x[0, 1] = np.nan

    np.testing.assert_array_equal(max_pool(x, 2)[0].asnumpy().ravel(), [np.nan, 0])


def test_global_mean_leaves_images_and_channels():
    x = values("3-D")

    np.testing.assert_allclose(global_mean(x).asnumpy(), x.mean(axis=(1, 2, 3)))


def test_padding_as_wide_as_the_kernel_is_refused():
    with pytest.raises(ShapeError, match="all padding"):
        max_pool(np.zeros((1, 4, 4, 1)), 2, 1, 2)


def test_integers_are_refused():
    with pytest.raises(ShapeError, match="floats"):
        max_pool(np.zeros((1, 4, 4, 1), np.int64), 2)
