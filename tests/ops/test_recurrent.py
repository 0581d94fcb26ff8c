"""Recurrent networks against a loop over time in float64."""

import numpy as np
import pytest

from hpctrain.autograd import Tensor, backward, check_gradients, grad, record
from hpctrain.errors import ShapeError
from hpctrain.ops.recurrent import gru, lstm

pytestmark = pytest.mark.serial
SIZES = [(4, 3, 5, 2), (1, 1, 1, 1), (2, 3, 5, 64), (6, 2, 3, 7), (3, 0, 2, 4), (0, 2, 3, 4)]
GATES = {lstm: 4, gru: 3}
RESULTS = {lstm: 3, gru: 2}  # outputs that have gradients


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_loop(x, h, c, w_x, w_h, bias):
    y = np.empty((len(x), *h.shape))
    for t, now in enumerate(x):
        i, f, g, o = np.split(now @ w_x.T + h @ w_h.T + bias, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = y[t] = sigmoid(o) * np.tanh(c)
    return y, h, c


def gru_loop(x, h, w_x, w_h, b_x, b_h):
    y = np.empty((len(x), *h.shape))
    for t, now in enumerate(x):
        (xr, xz, xn), (hr, hz, hn) = (
            np.split(p, 3, axis=1) for p in (now @ w_x.T + b_x, h @ w_h.T + b_h)
        )
        z, n = sigmoid(xz + hz), np.tanh(xn + sigmoid(xr + hr) * hn)
        h = y[t] = (1 - z) * n + z * h
    return y, h


LOOPS = {lstm: lstm_loop, gru: gru_loop}


def arrays(cell, t, b, i, h, dtype=np.float64):
    g = GATES[cell]
    states = [(b, h)] * (RESULTS[cell] - 1)
    biases = [(g * h,)] * (1 if cell is lstm else 2)
    rng = np.random.default_rng(8)
    shapes = [(t, b, i), *states, (g * h, i), (g * h, h), *biases]
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outputs_are_those_of_the_loop(cell, sizes, dtype):
    given = arrays(cell, *sizes, dtype)

    got = cell(*given)

    for a, b in zip(got[: RESULTS[cell]], LOOPS[cell](*given), strict=True):
        assert a.dtype == dtype
        np.testing.assert_allclose(a.asnumpy(), b, 0, 2e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("cell", GATES)
def test_gradients_agree_with_differences(cell, sizes):
    check_gradients(lambda *a: cell(*a)[: RESULTS[cell]], arrays(cell, *sizes))


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("output", [0, 1])
def test_an_output_alone_has_its_gradient(cell, output):
    check_gradients(lambda *a: cell(*a)[output], arrays(cell, 3, 2, 4, 5))


@pytest.mark.parametrize("cell", GATES)
def test_inputs_of_any_strides_are_right(cell):
    given = arrays(cell, 3, 4, 5, 6)
    turned = [np.ascontiguousarray(a.T).T for a in given]

    def run(parts):
        tensors = [Tensor(a) for a in parts]
        for tensor in tensors:
            tensor.attach_grad()
        with record():
            y = cell(*tensors)[0]
        return [y, *grad(y, tensors)]

    for a, b in zip(run(given), run(turned), strict=True):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), 1e-12, 1e-12)


@pytest.mark.parametrize("cell", GATES)
def test_the_saved_gates_have_no_gradient(cell):
    tensors = [Tensor(a) for a in arrays(cell, 2, 1, 2, 2)]
    tensors[0].attach_grad()
    with record():
        gates = cell(*tensors)[-1]

    with pytest.raises(ShapeError, match="saved gates"):
        backward(gates)


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("place", [1, 3, 4, 5])
def test_shapes_that_do_not_fit_are_refused(cell, place):
    given = arrays(cell, 2, 3, 4, 5)
    given[place] = np.zeros((*given[place].shape[:-1], 9))

    with pytest.raises(ShapeError, match="needed"):
        cell(*given)


def test_dtypes_are_not_mixed():
    given = arrays(lstm, 2, 3, 4, 5)
    given[3] = given[3].astype(np.float32)

    with pytest.raises(ShapeError, match="w_x as float32"):
        lstm(*given)
