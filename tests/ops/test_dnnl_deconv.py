"""Transposed convolutions of oneDNN, and both gradients, against sums in float64."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_kernels import needs_dnnl, poisoned, program, run, run_bound

from hpctrain.autograd import Spec, Tensor, grad, primitive, record
from hpctrain.ops.conv import conv_transpose

pytestmark = [pytest.mark.serial, needs_dnnl]


@dataclass(frozen=True)
class Case:
    """Shapes (N, *space, C), (C, *kernel, O / G), and what a transposed convolution takes."""

    x: tuple
    weight: tuple
    stride: tuple
    padding: tuple
    dilation: tuple
    groups: int
    more: tuple


@st.composite
def cases(draw):
    axes, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3, 16]))
    inner, outer = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    space, kernel, stride, padding, dilation, more = ([] for _ in range(6))
    for _ in range(axes):
        k, d, s = (draw(st.integers(1, 3)) for _ in range(3))
        pads = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        rest = draw(st.integers(0, s - 1))
        least = -(-max(0, sum(pads) - d * (k - 1) - rest) // s)  # one element is left
        space.append(1 + least + draw(st.integers(0, 4)))
        for into, value in zip((kernel, stride, padding, dilation, more), (k, s, pads, d, rest),
                               strict=True):  # fmt: skip
            into.append(value)
    x = (draw(st.integers(1, 3)), *space, inner * groups)
    rest = (tuple(v) for v in (stride, padding, dilation))
    return Case(x, (inner * groups, *kernel, outer), *rest, groups, tuple(more))


def spread(x, weight, case):
    """Add what each element of x becomes to where it goes, one place of the kernel at a time.

    Returns the result and the gradients of its sum with weights 1, 2, 3 ... for each element.
    """
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    space, kernel = x.shape[1:-1], weight.shape[1:-1]
    full = [(n - 1) * s + d * (k - 1) + 1 + m for n, s, d, k, m in
            zip(space, case.stride, case.dilation, kernel, case.more, strict=True)]  # fmt: skip
    inside = tuple(slice(a, n - b) for n, (a, b) in zip(full, case.padding, strict=True))
    shape = x.shape[0], *full, weight.shape[-1] * case.groups
    y, dy = np.zeros(shape), np.zeros(shape)
    seen = dy[(slice(None), *inside)]
    seen[...] = slopes(seen.shape)
    dx, dw = np.zeros_like(x), np.zeros_like(weight)
    for group in range(case.groups):
        ins, outs = (slice(group * n, (group + 1) * n) for n in
                     (x.shape[-1] // case.groups, weight.shape[-1]))  # fmt: skip
        for place in itertools.product(*map(range, kernel)):
            to = tuple(slice(p * d, p * d + (n - 1) * s + 1, s) for p, d, n, s in
                       zip(place, case.dilation, space, case.stride, strict=True))  # fmt: skip
            here, w = (slice(None), *to, outs), weight[(ins, *place)]
            y[here] += x[..., ins] @ w
            dx[..., ins] += dy[here] @ w.T
            axes = (list(range(x.ndim - 1)),) * 2
            dw[(ins, *place)] += np.tensordot(x[..., ins], dy[here], axes)
    return y[(slice(None), *inside)], dx, dw


def slopes(shape):
    return (np.arange(np.prod(shape)) % 7 - 3.0).reshape(shape)


def layouts(array):
    """Return the same elements with strides of every kind."""
    wide = np.repeat(array[..., None], 2, axis=-1)
    flipped = array[:, ::-1].copy()[:, ::-1]
    return [array, wide[..., 0], np.array(array, order="F"), flipped]


def close(have, want):
    scale = max(1.0, np.abs(want).max())
    np.testing.assert_allclose(have, want, rtol=0, atol=2e-5 * scale)


@given(case=cases(), seed=st.integers(0, 999))
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_result_and_both_gradients_are_those_sums(case, seed):
    rng = np.random.default_rng(seed)
    x, weight = (rng.standard_normal(s).astype(np.float32) for s in (case.x, case.weight))
    want = spread(x, weight, case)
    attrs = {"stride": case.stride, "padding": case.padding, "dilation": case.dilation,
             "groups": case.groups}  # fmt: skip
    size = want[0].shape[1:-1]
    dy = slopes(want[0].shape).astype(np.float32)

    for name, ins, more, result in (
        ("conv_grad_data", [x, weight], {"size": size}, want[0]),
        ("conv", [dy, weight], {}, want[1]),
        ("conv_grad_weight", [dy, x], {"kernel": case.weight[1:-1]}, want[2]),
    ):
        assert program(name, ins, **attrs, **more) is not None
        for given_ in zip(*map(layouts, ins), strict=True):
            close(run(name, list(given_), **attrs, **more)[0], result)
        close(run_bound(name, ins, **attrs, **more)[0], result)


@given(case=cases())
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
def test_the_function_and_its_gradients_are_these_rows(case):
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(s).astype(np.float32) for s in (case.x, case.weight))
    bias = rng.standard_normal(case.weight[-1] * case.groups).astype(np.float32)
    want = spread(x, weight, case)
    tensors = [Tensor(a) for a in (x, weight, bias)]
    for tensor in tensors:
        tensor.attach_grad()

    with record():
        y = conv_transpose(*tensors, case.stride, case.padding, case.more, case.dilation,
                           case.groups)  # fmt: skip
        loss = (y * Tensor(slopes(y.shape).astype(np.float32))).sum()
    got = grad(loss, tensors)

    close(y.asnumpy(), want[0] + bias)
    for have, result in zip(got, (*want[1:], slopes(y.shape).reshape(-1, bias.size).sum(0)),
                            strict=True):  # fmt: skip
        close(have.asnumpy(), result)


@pytest.mark.parametrize("kernel", [1, 3])
def test_a_strided_one_takes_the_faster_of_two_compiled_kernels(kernel):
    specs = [Spec((8, 8, 8, 32), np.dtype("float32")),
             Spec((32, kernel, kernel, 16), np.dtype("float32"))]  # fmt: skip
    pads = ((kernel // 2, kernel // 2),) * 2
    attrs = {"size": (16, 16), "stride": (2, 2), "padding": pads, "dilation": (1, 1),
             "groups": 1}  # fmt: skip
    assert primitive("conv_grad_data").infer(specs, **attrs)[0].shape == (8, 16, 16, 16)

    names = program("conv_grad_data", poisoned(specs), **attrs).names

    assert not any(name.startswith("brgconv_strided") for name in names), names
