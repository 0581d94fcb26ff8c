"""The gradient of batch normalisation by oneDNN against that by NumPy."""

import numpy as np
import pytest
from two_kernels import compare, needs_dnnl, program, run

pytestmark = [pytest.mark.serial, needs_dnnl]


def inputs(shape, offset=0.0):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(shape) + offset).astype(np.float32)
    gamma, beta = rng.standard_normal((2, shape[-1])).astype(np.float32)
    _, mean, var = run("batch_norm", [x, gamma, beta], eps=1e-5)
    return [rng.standard_normal(shape).astype(np.float32), x, gamma, mean, var]


@pytest.mark.parametrize("shape", [(4, 16), (3, 5, 32), (8, 7, 9, 16), (2, 3, 4, 5, 48)])
@pytest.mark.parametrize("offset", [0.0, 10.0])
def test_gradients_are_those_of_numpy(shape, offset):
    compare("batch_norm_grad", inputs(shape, offset), limit=1e-5, eps=1e-5)


def test_channels_that_do_not_fill_a_vector_are_left_to_numpy():
    assert program("batch_norm_grad", inputs((4, 5, 7)), eps=1e-5) is None
