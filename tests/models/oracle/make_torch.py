"""Write torch.npz: what small models of the zoo give in PyTorch, and their gradients.

    python tests/models/oracle/make_torch.py      # needs PyTorch; the tests do not

The models are written out as functions that take their parameters in the order of our
structural names, each filled with a wave.
"""

import runpy
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)

HERE = Path(__file__).parent
WAVES = runpy.run_path(str(HERE.parents[1] / "nn" / "oracle" / "waves.py"))


class Parameters:
    """Makes parameter after parameter."""

    def __init__(self):
        self.made = []

    def __call__(self, *shape):
        value = torch.tensor(WAVES["fill"](len(self.made), shape), requires_grad=True)
        self.made.append(value)
        return value

    def linear(self, x, units, bias=True):
        """Apply a dense layer."""
        return F.linear(x, self(units, x.shape[-1]), self(units) if bias else None)


def mlp(p, x):
    """Return the outputs of the perceptron."""
    for width in (7, 5):
        x = F.relu(p.linear(x, width))
    return p.linear(x, 4)


def lenet(p, x):
    """Return the outputs of LeNet."""
    x = F.max_pool2d(F.relu(F.conv2d(x, p(20, 1, 5, 5), p(20))), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, p(50, 20, 5, 5), p(50))), 2)
    x = F.relu(p.linear(x.permute(0, 2, 3, 1).flatten(1), 500))
    return p.linear(x, 10)


def _norm(p, x):
    return F.batch_norm(x, None, None, p(x.shape[1]), p(x.shape[1]), training=True)


def resnet(p, x):
    """Return the outputs of the residual network of 8 layers."""
    x = F.relu(_norm(p, F.conv2d(x, p(16, 3, 3, 3), padding=1)))
    for width in (16, 32, 64):
        inner = x.shape[1]
        stride = 1 if inner == width else 2
        y = F.conv2d(x, p(width, inner, 3, 3), stride=stride, padding=1)
        y = F.relu(_norm(p, y))
        y = _norm(p, F.conv2d(y, p(width, width, 3, 3), padding=1))
        if inner != width:
            x = _norm(p, F.conv2d(x, p(width, inner, 1, 1), stride=stride))
        x = F.relu(y + x)
    return p.linear(x.mean((2, 3)), 10)


def lstm(p, x):
    """Return the outputs of the language model."""
    y = F.embedding(x, p(11, 6))
    weights = [p(*shape) for _ in range(2) for shape in ((24, 6), (24, 6), (24,), (24,))]
    zeros = torch.zeros(2, x.shape[1], 6, dtype=torch.float64)
    y = torch.lstm(y, (zeros, zeros), weights, True, 2, 0.0, False, False, False)[0]
    return p.linear(y, 11)


def gpt(p, x):
    """Return the outputs of the transformer."""
    y = F.embedding(x, p(11, 8)) + p(6, 8)[: x.shape[1]]
    b, t, c = y.shape
    for _ in range(2):
        z = F.layer_norm(y, (8,), p(8), p(8))
        q, k, v = p.linear(z, 24).view(b, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y + p.linear(z.transpose(1, 2).reshape(b, t, c), 8)
        z = F.layer_norm(y, (8,), p(8), p(8))
        y = y + p.linear(F.gelu(p.linear(z, 32), approximate="tanh"), 8)
    return p.linear(F.layer_norm(y, (8,), p(8), p(8)), 11, bias=False)


def cosmo(p, x):
    """Return the outputs of the network for volumes."""
    for width in (4, 5, 6):
        x = F.conv3d(x, p(width, x.shape[1], 3, 3, 3), p(width), padding=1)
        x = F.max_pool3d(F.leaky_relu(x, 0.3), 2)
    x = F.leaky_relu(p.linear(x.permute(0, 2, 3, 4, 1).flatten(1), 7), 0.3)
    return p.linear(x, 4)


MODELS = {
    "mlp": (mlp, (3, 9)),
    "lenet": (lenet, (2, 1, 20, 20)),
    "resnet": (resnet, (3, 3, 8, 8)),
    "lstm": (lstm, (4, 3)),
    "gpt": (gpt, (3, 5)),
    "cosmo": (cosmo, (2, 2, 8, 8, 8)),
}

if __name__ == "__main__":
    found = {}
    for name, (model, shape) in MODELS.items():
        wave, p = WAVES["wave"](shape), Parameters()
        ids = name in ("lstm", "gpt")
        x = torch.tensor(np.arange(wave.size).reshape(shape) * 5 % 11 if ids else wave)
        y = model(p, x)
        (y**2).sum().backward()
        found[f"{name}.y"] = y.detach().numpy()
        found[f"{name}.norms"] = np.array([float(w.grad.norm()) for w in p.made])
        found[f"{name}.last"] = p.made[-1].grad.numpy()
    np.savez_compressed(HERE / "torch.npz", **found)
