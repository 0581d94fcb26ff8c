"""The text of CUDA kernels, and what is handed to CuPy with it."""

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Spec
from hpctrain.graph.capture import capture
from hpctrain.graph.cuda import cuda_text, run_cuda
from hpctrain.graph.fuse import fuse
from hpctrain.graph.passes import EXACT, optimise

pytestmark = pytest.mark.serial
F4 = np.dtype(np.float32)


def work(function, *shapes):
    graph = optimise(capture(function, [Spec(s, F4) for s in shapes]), EXACT)
    (node,) = fuse(graph).nodes
    return node.row.kernel.__self__.work


def test_a_formula_becomes_statements():
    found = work(lambda x, y: ops.tanh(x * y) + ops.relu(y), (5,), (5,))

    taken, given, text = cuda_text(found)

    assert taken == "float32 a0, float32 a1"
    assert given == "float32 y0"
    assert text.splitlines() == [
        "const float t0 = a0 * a1;",
        "const float t1 = tanh(t0);",
        "const float t2 = (a1 > (float)(0.0) || a1 != a1) ? a1 : (float)(0.0);",
        "const float t3 = t1 + t2;",
        "y0 = t3;",
    ]


def test_every_operation_has_a_text():
    def function(x, y):
        z = ops.where(ops.logical_not(x < y), ops.clip(x, -1.0, float("inf")), -y)
        z = z + ops.erf(x) - ops.log1p(ops.abs(y)) / ops.sqrt(x * x + 1.0) + ops.expm1(x)
        return z + ops.cast(ops.isfinite(x), "float32") + ops.sign(ops.exp(x) - ops.log(y))

    text = cuda_text(work(function, (5,), (5,)))[2]

    for part in ("? ", "erf(", "log1p(", "abs(", "sqrt(", "expm1(", "!", "(float)(t", "exp("):
        assert part in text, part
    assert "(float)(1.0 / 0.0)" in text  # infinity


class Recorder:
    """Stands for CuPy: evaluates one known text with NumPy, and notes what it was asked for."""

    empty, sum = staticmethod(np.empty), staticmethod(np.sum)

    def __init__(self):
        self.asked = []

    def ElementwiseKernel(self, taken, given, text, name):
        self.asked.append((taken, given, text, name))

        def kernel(x, row, y, z):
            y[...] = x + row
            z[...] = x + row

        return kernel


def test_inputs_are_broadcast_and_sums_made_of_what_the_kernel_writes():
    def function(x, row):
        y = x + ops.broadcast_to(row, x.shape)
        return y, ops.mean(y, 0, keepdims=True)

    found = work(function, (4, 5), (5,))
    x, row = np.arange(20, dtype=F4).reshape(4, 5), np.ones(5, F4)
    outs = [np.empty((4, 5), F4), np.empty((1, 5), F4)]
    stand_in = Recorder()

    run_cuda(found, stand_in, [x if a.spec.ndim == 2 else row for a in found.inputs], outs)

    np.testing.assert_array_equal(outs[0], x + 1)
    np.testing.assert_allclose(outs[1], (x + 1).mean(0, keepdims=True))
    assert stand_in.asked[0][3] == f"fused_{found.digest()}"
