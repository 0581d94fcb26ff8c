"""Compute every case that has a PyTorch form, in float64, and store outputs and gradients.

    python tests/ops/oracle/make_torch.py [group ...]

Needs torch and numpy, in an environment of its own; hpctrain is not used. For each group it
writes ``<group>.npz``: ``<case>/out<i>``, and ``<case>/grad<i>`` for each floating input.
"""

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from op_cases import ORACLE, groups, load


def results(case):
    """Return outputs and gradients of one case by key."""
    inputs = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in case.arrays()]
    outputs = case.torch(torch, *inputs)
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    found = {f"{case.name}/out{i}": o.detach().numpy() for i, o in enumerate(outputs)}
    pairs = [
        (o, torch.tensor(c))
        for o, c in zip(outputs, case.cotangents(outputs), strict=True)
        if o.requires_grad
    ]
    if pairs:
        torch.autograd.backward([o for o, _ in pairs], [c for _, c in pairs])
    for i, x in enumerate(inputs):
        if x.grad is not None:
            found[f"{case.name}/grad{i}"] = x.grad.numpy()
    return found


def main(wanted):
    """Write the file of each group."""
    torch.set_num_threads(1)
    for group in wanted or groups():
        arrays = {}
        for case in load(group):
            if case.torch is not None:
                arrays |= results(case)
        path = ORACLE / f"{group}.npz"
        if arrays:
            np.savez_compressed(path, **arrays)
            print(f"{path.name}: {len(arrays)} arrays, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
