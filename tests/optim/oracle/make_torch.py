"""Write torch.json: weights after five updates by PyTorch's optimizers.

    python tests/optim/oracle/make_torch.py      # needs PyTorch; the tests do not

The gradients are sines, so that the tests can make them again without PyTorch.
"""

import json
import math
from pathlib import Path

import torch

N, STEPS = 7, 5
CASES = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_decay": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.05}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}),
    "sgd_nesterov": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.05},
    ),
    "adam": (torch.optim.Adam, {"lr": 0.02, "weight_decay": 0.05}),
    "adam_betas": (torch.optim.Adam, {"lr": 0.02, "betas": [0.8, 0.95], "eps": 0.1}),
    "adamw": (torch.optim.AdamW, {"lr": 0.02, "weight_decay": 0.3}),
}


def run(kind, args):
    """Return the weights after each update; the rate falls by a third in the third one."""
    weight = torch.tensor([math.cos(i) for i in range(N)], dtype=torch.float64)
    weight.requires_grad_()
    optimizer = kind([weight], **args)
    rows = []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = args["lr"] * (1 if step < 2 else 2 / 3)
        weight.grad = torch.tensor(
            [math.sin(3 * i + step) for i in range(N)], dtype=torch.float64
        )
        optimizer.step()
        rows.append(weight.detach().tolist())
    return rows


if __name__ == "__main__":
    found = {
        name: {"args": args, "weights": run(kind, args)} for name, (kind, args) in CASES.items()
    }
    text = json.dumps({"torch": torch.__version__, "cases": found}, indent=1)
    Path(__file__).with_name("torch.json").write_text(text + "\n")
