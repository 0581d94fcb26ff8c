"""Convolutions against loops over every result, in float64."""

import itertools

import numpy as np
import pytest

from hpctrain.autograd import Tensor, apply, check_gradients, grad, record
from hpctrain.errors import ShapeError
from hpctrain.ops.conv import conv, conv_transpose
from hpctrain.ops.windows import BLOCK_BYTES, Window, blocks

pytestmark = pytest.mark.serial

# x, weight, stride, padding, dilation, groups
CASES = {
    "plain 1-D": ((2, 9, 3), (4, 3, 3), 1, 0, 1, 1),
    "one channel, five wide": ((2, 19, 1), (4, 5, 1), 1, 2, 1, 1),
    "strided 1-D": ((2, 10, 4), (3, 3, 4), 2, 1, 1, 1),
    "3x3 padded": ((3, 7, 6, 4), (5, 3, 3, 4), 1, 1, 1, 1),
    "3x3 stride 2": ((2, 9, 8, 4), (5, 3, 3, 4), 2, 1, 1, 1),
    "1x1": ((2, 5, 4, 3), (6, 1, 1, 3), 1, 0, 1, 1),
    "1x1 stride 2": ((2, 5, 4, 3), (6, 1, 1, 3), 2, 0, 1, 1),
    "odd kernel, pairs": ((2, 8, 9, 2), (3, 2, 4, 2), (2, 1), ((0, 2), (3, 1)), 1, 1),
    "dilated": ((2, 11, 12, 3), (4, 3, 2, 3), 1, (2, 0), (2, 3), 1),
    "dilated and strided": ((1, 13, 12, 2), (4, 3, 2, 2), (3, 2), 2, (2, 3), 1),
    "groups": ((2, 6, 7, 6), (9, 3, 3, 2), 1, 1, 1, 3),
    "groups stride 2": ((2, 6, 7, 6), (9, 3, 3, 2), 2, 1, 1, 3),
    "depthwise": ((2, 6, 7, 5), (5, 3, 3, 1), 1, 1, 1, 5),
    "depthwise stride 2": ((2, 6, 7, 5), (5, 3, 3, 1), 2, 1, 1, 5),
    "depthwise dilated": ((2, 9, 12, 3), (3, 2, 3, 1), (1, 2), (0, 2), (2, 3), 3),
    "depthwise apart, dilated": ((2, 10, 12, 3), (3, 2, 2, 1), (2, 3), 0, (2, 1), 3),
    "depthwise beyond kernel": ((2, 10, 12, 3), (3, 2, 2, 1), (4, 3), 0, 1, 3),
    "depthwise negative padding": ((2, 8, 9, 3), (3, 3, 3, 1), 2, ((-1, 0), (1, -2)), 1, 3),
    "depthwise 1-D, two outputs each": ((2, 12, 3), (6, 3, 1), 1, 1, 1, 3),
    "depthwise 3-D": ((2, 5, 4, 6, 3), (3, 3, 2, 3, 1), 1, 1, 1, 3),
    "more padding than kernel": ((2, 4, 5, 3), (4, 2, 2, 3), 1, 3, 1, 1),
    "stride beyond kernel": ((2, 11, 10, 3), (4, 2, 1, 3), 4, 0, 1, 1),
    "3-D": ((2, 5, 4, 6, 3), (4, 3, 3, 3, 3), 1, 1, 1, 1),
    "3-D stride 2": ((2, 5, 4, 6, 3), (4, 3, 2, 3, 3), (2, 1, 2), (1, 0, 1), 1, 1),
    "empty batch": ((0, 6, 5, 3), (4, 3, 3, 3), 1, 1, 1, 1),
    "negative padding": ((2, 8, 7, 3), (4, 3, 3, 3), 1, ((-1, 0), (1, -2)), 1, 1),
    "negative padding stride 2": ((2, 8, 9, 3), (4, 3, 3, 3), 2, ((-1, 0), (1, -2)), 1, 1),
}


def loops(x, weight, stride, padding, dilation, groups):
    """Sum over every window one by one."""
    space = x.ndim - 2
    wide = [np.broadcast_to(np.asarray(v), space) for v in (stride, dilation)]
    pads = [(p, p) if np.isscalar(p) else p
            for p in ((padding,) * space if np.isscalar(padding) else padding)]  # fmt: skip
    kernel = weight.shape[1:-1]
    more = [(max(a, 0), max(b, 0)) for a, b in pads]
    x = np.pad(x, [(0, 0), *more, (0, 0)])
    x = x[(slice(None), *(slice(max(-a, 0), n + min(b, 0))
                          for (a, b), n in zip(pads, x.shape[1:-1], strict=True)))]  # fmt: skip
    out = [(n - d * (k - 1) - 1) // s + 1
           for n, k, s, d in zip(x.shape[1:-1], kernel, *wide, strict=True)]  # fmt: skip
    y = np.zeros((x.shape[0], *out, weight.shape[0]))
    inner, outer = weight.shape[-1], weight.shape[0] // groups
    for at in itertools.product(*map(range, out)):
        for g in range(groups):
            part = x[(slice(None), *(slice(a * s, a * s + d * (k - 1) + 1, d)
                                     for a, s, d, k in zip(at, *wide, kernel, strict=True)),
                      slice(g * inner, (g + 1) * inner))]  # fmt: skip
            w = weight[g * outer : (g + 1) * outer]
            y[(slice(None), *at, slice(g * outer, (g + 1) * outer))] = np.tensordot(
                part, w, (list(range(1, part.ndim)), list(range(1, part.ndim)))
            )
    return y


def arrays(case, dtype=np.float64):
    rng = np.random.default_rng(7)
    x, weight = CASES[case][:2]
    parts = (
        rng.standard_normal(x),
        rng.standard_normal(weight),
        rng.standard_normal(weight[0]),
    )
    return tuple(part.astype(dtype) for part in parts)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_convolution_is_the_sum_over_each_window(case, dtype):
    x, weight, bias = arrays(case, dtype)

    y = conv(x, weight, bias, *CASES[case][2:])

    expected = loops(x, weight, *CASES[case][2:]) + bias
    assert y.dtype == dtype
    np.testing.assert_allclose(
        y.asnumpy(), expected, rtol=0, atol=2e-5 if dtype == "float32" else 1e-12
    )


@pytest.mark.parametrize("case", CASES)
def test_gradients_agree_with_differences(case):
    check_gradients(lambda x, w, b: conv(x, w, b, *CASES[case][2:]), arrays(case), order=2)


@pytest.mark.parametrize("case", CASES)
def test_transposed_convolution_is_the_adjoint(case):
    x, weight, _ = arrays(case)
    y = conv(x, weight, None, *CASES[case][2:]).asnumpy()
    stride, padding, dilation, groups = CASES[case][2:]
    u = np.random.default_rng(3).standard_normal(y.shape)
    short = conv_transpose(u, weight, None, stride, padding, 0, dilation, groups)
    lacking = tuple(a - b for a, b in zip(x.shape[1:-1], short.shape[1:-1], strict=True))

    back = conv_transpose(u, weight, None, stride, padding, lacking, dilation, groups)

    assert back.shape == x.shape
    assert np.sum(y * u) == pytest.approx(np.sum(x * back.asnumpy()), rel=1e-10)


def test_transposed_convolution_adds_its_bias():
    x, weight = np.ones((1, 3, 2)), np.zeros((2, 2, 5))

    y = conv_transpose(x, weight, np.arange(5.0), stride=2)

    np.testing.assert_array_equal(y.asnumpy(), np.broadcast_to(np.arange(5.0), (1, 6, 5)))


@pytest.mark.parametrize("shape", [(17, 6, 7, 4), (2, 30, 9, 4), (2, 8, 9, 6, 4)])
@pytest.mark.parametrize("stride", [1, 2])
def test_many_blocks_give_what_one_block_gives(shape, stride, monkeypatch):
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype("float32")
    weight = rng.standard_normal((6, *(3,) * (len(shape) - 2), shape[-1])).astype("float32")

    def run():
        a, b = Tensor(x), Tensor(weight)
        a.attach_grad()
        b.attach_grad()
        with record():
            y = conv(a, b, None, stride, 1)
        return [y, *grad(y, [a, b], y)]

    monkeypatch.setattr("hpctrain.ops.windows.BLOCK_BYTES", 15_000)
    many = run()
    monkeypatch.setattr("hpctrain.ops.windows.BLOCK_BYTES", 1 << 40)
    for got, expected in zip(many, run(), strict=True):
        scale = np.abs(expected.asnumpy()).max()
        assert np.abs(got.asnumpy() - expected.asnumpy()).max() <= 1e-5 * scale


@pytest.mark.parametrize(
    "images, out", [(70, (1, 33, 20)), (2, (30, 31, 20)), (2, (3, 3000, 20)), (0, (1, 2, 3))]
)
def test_blocks_cover_every_line_once(images, out):
    window = Window(out, (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1), out)
    seen = np.zeros((images, *out[:2]), int)

    for block in blocks(window, images, 5000):
        seen[block] += 1
        assert seen[block].size * 5000 <= BLOCK_BYTES

    assert (seen == 1).all()


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_inputs_of_any_strides_are_right(kernel, stride):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((4, 7, 9, 12))[::2, :, ::-1, ::3].transpose(0, 2, 1, 3)
    weight = rng.standard_normal((4, kernel, 5, kernel)).transpose(2, 1, 3, 0)
    dy = rng.standard_normal(())

    y = conv(x, weight, None, stride)
    spread = Tensor(np.broadcast_to(dy, y.shape))
    attrs = {"stride": (stride,) * 2, "padding": ((0, 0),) * 2, "dilation": (1, 1), "groups": 1}
    dw = apply("conv_grad_weight", Tensor(x), spread, kernel=(kernel,) * 2, **attrs)
    dx = apply("conv_grad_data", spread, Tensor(weight), size=x.shape[1:3], **attrs)

    np.testing.assert_allclose(y.asnumpy(), loops(x, weight, stride, 0, 1, 1), atol=1e-12)
    assert np.sum(dw.asnumpy() * weight) == pytest.approx(np.sum(y.asnumpy()) * dy)
    assert np.sum(dx.asnumpy() * x) == pytest.approx(np.sum(y.asnumpy()) * dy)


@pytest.mark.parametrize("x, weight, groups", [
    ((2, 5, 5, 4), (3, 3, 3, 5), 1),
    ((2, 5, 5, 4), (3, 3, 3, 2), 2),
    ((2, 5, 5, 4), (3, 3, 4), 1),
    ((2, 2, 5, 4), (3, 3, 3, 4), 1),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(x, weight, groups):
    with pytest.raises(ShapeError, match="needed"):
        conv(np.zeros(x), np.zeros(weight), groups=groups)


def test_dtypes_are_not_mixed():
    with pytest.raises(ShapeError, match="one dtype"):
        conv(np.zeros((1, 3, 2)), np.zeros((1, 1, 2), np.float32))
