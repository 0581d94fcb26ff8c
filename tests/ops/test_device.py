"""Every case of the table on a GPU gives what it gives on the host; skipped without one.

The same comparison runs against a second device of the host, so that it is known to work.
"""

import numpy as np
import pytest
from op_cases import case_ids, every_case

from hpctrain import ops
from hpctrain.autograd import Tensor, backward, record
from hpctrain.backend import CPU, Device

pytestmark = pytest.mark.serial
PAIRS = every_case()


def results(case, device):
    """Return outputs and gradients of a case in float64 on ``device``, on the host."""
    tensors = [Tensor(a, device=device) for a in case.arrays()]
    for tensor in tensors:
        if tensor.dtype.kind == "f":
            tensor.attach_grad()
    with record():
        outputs = case.ours(ops, *tensors)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert all(o.device == device for o in outputs)
    pairs = [
        (o, Tensor(c, device=device))
        for o, c in zip(outputs, case.cotangents(outputs), strict=True)
        if c is not None and o.requires_grad and case.order
    ]
    if pairs:
        heads, given = zip(*pairs, strict=True)
        backward(heads, given)
    grads = [t.grad.asnumpy() for t in tensors if t.grad is not None]
    return [*(o.asnumpy() for o in outputs), *grads]


def check(case, device):
    for mine, theirs in zip(results(case, CPU), results(case, device), strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=1e-10, atol=1e-10 * case.loose)


@pytest.mark.gpu
@pytest.mark.parametrize(("group", "case"), PAIRS, ids=case_ids(PAIRS))
def test_a_gpu_gives_what_the_host_gives(group, case):
    check(case, Device("gpu", 0))


@pytest.mark.parametrize(("group", "case"), PAIRS, ids=case_ids(PAIRS))
def test_a_second_device_of_the_host_does(group, case):
    check(case, Device("cpu", 1))
