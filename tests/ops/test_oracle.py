"""Outputs and gradients of every operation against PyTorch's, stored in oracle/*.npz."""

import numpy as np
import pytest
from op_cases import ORACLE, case_ids, every_case

from hpctrain import ops
from hpctrain.autograd import Tensor, backward, record

pytestmark = pytest.mark.serial
PAIRS = [(group, case) for group, case in every_case() if case.torch is not None]
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}


def results(case, dtype):
    """Return our outputs and gradients by key."""
    inputs = [Tensor(a.astype(dtype) if a.dtype.kind == "f" else a) for a in case.arrays()]
    floating = [x for x in inputs if x.dtype.kind == "f"]
    for x in floating:
        x.attach_grad()
    with record():
        outputs = case.ours(ops, *inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {f"{case.name}/out{i}": o.asnumpy() for i, o in enumerate(outputs)}
    given = [None if c is None else Tensor(c.astype(dtype)) for c in case.cotangents(outputs)]
    return found, outputs, given, inputs


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("group", "case"), PAIRS, ids=case_ids(PAIRS))
def test_outputs_and_gradients_are_those_of_pytorch(group, case, dtype):
    with np.load(ORACLE / f"{group}.npz", allow_pickle=False) as stored:
        wanted = {k: stored[k] for k in stored.files if k.startswith(f"{case.name}/")}
    assert wanted, f"{group}.npz has no case {case.name}; run make_torch.py {group}"

    found, outputs, given, inputs = results(case, dtype)
    pairs = [
        (o, g)
        for i, (o, g) in enumerate(zip(outputs, given, strict=True))
        if o.requires_grad and g is not None and f"{case.name}/out{i}" in wanted
    ]
    if pairs:
        backward([o for o, _ in pairs], [g for _, g in pairs])
    found |= {
        f"{case.name}/grad{i}": x.grad.asnumpy()
        for i, x in enumerate(inputs)
        if x.grad is not None
    }

    for key, want in wanted.items():
        have = found[key]
        assert have.shape == want.shape, key
        assert want.dtype.kind != "f" or have.dtype == dtype, key
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        error = float(np.abs(have.astype(np.float64) - want).max(initial=0)) / scale
        assert error <= TOLERANCE[dtype] * case.loose, f"{key}: {error:.3g}"
