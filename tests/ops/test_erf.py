"""The error function against the C library."""

import math

import numpy as np
import pytest

from hpctrain import ops
from hpctrain.autograd import Tensor

pytestmark = pytest.mark.serial


def test_erf_is_that_of_the_c_library():
    x = np.concatenate([np.linspace(-7, 7, 5001), 10.0 ** np.arange(-300, 0)])
    want = np.array([math.erf(v) for v in x])

    np.testing.assert_allclose(ops.erf(Tensor(x)).asnumpy(), want, rtol=4e-15)
    short = ops.erf(Tensor(x.astype(np.float32))).asnumpy()
    want = np.array([math.erf(v) for v in x.astype(np.float32)])
    np.testing.assert_allclose(short, want, rtol=6e-7, atol=1e-44)
