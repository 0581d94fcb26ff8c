"""Print a line of JSON about a training step in PyTorch: ``PYTHON torch_step.py WORKLOAD``."""

# mypy: ignore-errors

import argparse
import json
import resource
from statistics import median
from time import perf_counter

import torch
from torch import nn
from torch.nn import functional

WARM_UP = 5
RESNET_STAGES = ((16, 1), (32, 2), (64, 2))


def mlp():
    return nn.Sequential(
        nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )


def conv_norm(inputs, outputs, kernel, stride):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3, stride)
        self.second = conv_norm(outputs, outputs, 3, 1)
        same = inputs == outputs and stride == 1
        self.short = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x):
        y = self.second(functional.relu(self.first(x)))
        return functional.relu(y + self.short(x))


def resnet20():
    layers, width = [conv_norm(3, 16, 3, 1), nn.ReLU()], 16
    for outputs, stride in RESNET_STAGES:
        for number in range(3):
            layers.append(Residual(width, outputs, 1 if number else stride))
            width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Words(nn.Module):
    def __init__(self, vocabulary=10_000, width=512):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, 2)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, x):
        y, _ = self.recurrent(self.embed(x))
        return self.out(y)


class Attend(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, steps, width = x.shape
        parts = self.qkv(x).view(batch, steps, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, steps, width))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attend = nn.Sequential(nn.LayerNorm(width), Attend(width, heads))
        self.think = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
        )  # fmt: skip

    def forward(self, x):
        x = x + self.attend(x)
        return x + self.think(x)


class Gpt(nn.Module):
    def __init__(self, vocabulary=1000, width=256, heads=4, depth=4, steps=128):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.zeros(steps, width))
        layers = [Layer(width, heads) for _ in range(depth)]
        head = nn.Linear(width, vocabulary, bias=False)
        self.body = nn.Sequential(*layers, nn.LayerNorm(width), head)

    def forward(self, x):
        return self.body(self.embed(x) + self.place)


def cosmo():
    layers, widths = [], (4, 16, 32, 64)
    for inputs, outputs in zip(widths, widths[1:]):  # noqa: B905 (older Pythons, too)
        layers += [nn.Conv3d(inputs, outputs, 3, padding=1), nn.LeakyReLU(0.3), nn.MaxPool3d(2)]
    head = [nn.Flatten(), nn.Linear(4096, 128), nn.LeakyReLU(0.3), nn.Linear(128, 4)]
    return nn.Sequential(*layers, *head)


def classes(count, *shape):
    return torch.randint(count, shape)


WORKLOADS = {
    "mlp": (mlp, lambda: (torch.randn(128, 784), classes(10, 128))),
    "resnet20": (resnet20, lambda: (torch.randn(64, 3, 32, 32), classes(10, 64))),
    "lstm": (Words, lambda: (classes(10_000, 35, 32), classes(10_000, 35, 32))),
    "gpt": (Gpt, lambda: (classes(1000, 8, 128), classes(1000, 8, 128))),
    "cosmo": (cosmo, lambda: (torch.randn(8, 4, 32, 32, 32), torch.randn(8, 4))),
}


def loss_of(y, target):
    if target.is_floating_point():
        return functional.mse_loss(y, target)
    return functional.cross_entropy(y.reshape(-1, y.shape[-1]), target.reshape(-1))


def measure(args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    make, given = WORKLOADS[args.workload]
    model, (x, target) = make(), given()
    if args.variant == "channels_last":
        memory = torch.channels_last_3d if x.dim() == 5 else torch.channels_last
        model, x = model.to(memory_format=memory), x.to(memory_format=memory)
    if args.variant == "compile":
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    times = []
    for _ in range(WARM_UP + args.steps):
        begun = perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            loss = loss_of(model(x), target)
        loss.backward()
        optimizer.step()
        times.append(perf_counter() - begun)
    return {
        "peer": f"torch {args.variant}",
        "version": torch.__version__,
        "workload": args.workload,
        "ms_per_step": round(median(times[WARM_UP:]) * 1e3, 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "loss": round(loss.item(), 4),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--variant", default="eager")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    print(json.dumps(measure(parser.parse_args())), flush=True)


if __name__ == "__main__":
    main()
