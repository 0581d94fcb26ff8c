"""Write torch.npz: what PyTorch's layers and losses give for inputs that the tests make again.

    python tests/nn/oracle/make_torch.py      # needs PyTorch; the tests do not

Every array is a sine of its index (``wave``), so only results are stored, in double precision.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import nn
from waves import fill, wave

FOUND = {}


def keep(name, *tensors):
    """Store results, and the gradient of the sum of squares of the first to the input."""
    for place, tensor in enumerate(tensors):
        FOUND[f"{name}.{place}"] = tensor.detach().numpy()


def made(module):
    """Return ``module`` in double precision, its parameters filled with waves in order."""
    module = module.double()
    for place, parameter in enumerate(module.parameters()):
        parameter.data = torch.tensor(fill(place, tuple(parameter.shape)))
    return module


def tensor(*shape, phase=0.0, grad=False):
    """Return a wave of ``shape`` as a tensor."""
    return torch.tensor(wave(shape, phase), requires_grad=grad)


def layer(name, module, *shape):
    """Store the result of ``module`` on a wave, and the gradients of input and parameters."""
    module, x = made(module), tensor(*shape, grad=True)
    y = module(x)
    y = y[0] if isinstance(y, tuple) else y
    (y**2).sum().backward()
    keep(name, y, x.grad, *(p.grad for p in module.parameters()))
    return module


class Attention(nn.Module):
    """Self-attention with packed queries, keys and values."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        """Attend to earlier positions."""
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


def layers():
    """Store the layers."""
    layer("dense", nn.Linear(5, 4), 3, 5)
    layer("conv1d", nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), 2, 4, 9)
    layer("conv2d", nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0)), 2, 3, 7, 6)
    layer("conv3d", nn.Conv3d(2, 3, 3, padding=1), 2, 2, 4, 3, 5)
    layer(
        "conv2d_transpose",
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        2, 4, 5, 4,
    )  # fmt: skip
    layer("max_pool", nn.MaxPool2d(3, 2, 1), 2, 3, 7, 6)
    layer("avg_pool", nn.AvgPool2d(3, 2, 1), 2, 3, 7, 6)
    layer("avg_pool_inside", nn.AvgPool2d(3, 2, 1, count_include_pad=False), 2, 3, 7, 6)
    layer("global_avg_pool", nn.AdaptiveAvgPool2d(1), 2, 3, 7, 6)
    norm = layer("batch_norm", nn.BatchNorm2d(3), 4, 3, 5, 2)
    variance = (norm.running_var - 0.9) * (39 / 40) + 0.9  # ours is divided by n
    keep("batch_norm_running", norm.running_mean, variance)
    norm.eval()
    norm.running_mean, norm.running_var = tensor(3), tensor(3) ** 2 + 0.5
    keep("batch_norm_inference", norm(tensor(4, 3, 5, 2)))
    layer("layer_norm", nn.LayerNorm(6), 4, 3, 6)
    layer("lstm", nn.LSTM(5, 4, 2), 6, 3, 5)
    layer("gru", nn.GRU(5, 4, 2), 6, 3, 5)
    layer("attention", Attention(8, 2), 3, 5, 8)


def recurrent_states():
    """Store outputs and last states from given first states."""
    lstm, gru = made(nn.LSTM(5, 4, 2)), made(nn.GRU(5, 4, 2))
    h, c = tensor(2, 3, 4, phase=1.0), tensor(2, 3, 4, phase=2.0)
    y, (hn, cn) = lstm(tensor(6, 3, 5), (h, c))
    keep("lstm_states", y, hn, cn)
    keep("gru_states", *gru(tensor(6, 3, 5), h))


def losses():
    """Store the mean over all elements of each sample."""
    pred, label = tensor(4, 3, 5) * 3, tensor(4, 3, 5, phase=1.0)
    probable, classes = label.abs(), torch.arange(12).reshape(4, 3) % 5
    found = {
        "l1": F.l1_loss(pred, label, reduction="none"),
        "mse": F.mse_loss(pred, label, reduction="none"),
        "bce": F.binary_cross_entropy_with_logits(pred, probable, reduction="none"),
        "softmax": F.cross_entropy(pred.movedim(2, 1), classes, reduction="none"),
        "soft": F.cross_entropy(
            pred.movedim(2, 1), (probable / probable.sum(2, True)).movedim(2, 1),
            reduction="none",
        ),
    }  # fmt: skip
    for name, loss in found.items():
        keep(name, loss.flatten(1).mean(1))


if __name__ == "__main__":
    layers()
    recurrent_states()
    losses()
    np.savez_compressed(Path(__file__).with_name("torch.npz"), **FOUND)
