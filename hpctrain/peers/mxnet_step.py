"""Print a line of JSON about a training step in MXNet: ``PYTHON mxnet_step.py WORKLOAD``."""

# mypy: ignore-errors

import argparse
import json
import resource
from statistics import median
from time import perf_counter

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn

WARM_UP = 5
RESNET_STAGES = ((16, 1), (32, 2), (64, 2))


def chain(*layers):
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def mlp():
    hidden = nn.Dense(2048, "relu", in_units=784), nn.Dense(2048, "relu", in_units=2048)
    return chain(*hidden, nn.Dense(10, in_units=2048))


def conv_norm(inputs, outputs, kernel, stride):
    conv = nn.Conv2D(outputs, kernel, stride, kernel // 2, use_bias=False, in_channels=inputs)
    return chain(conv, nn.BatchNorm(in_channels=outputs))


class Residual(gluon.HybridBlock):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3, stride)
        self.second = conv_norm(outputs, outputs, 3, 1)
        same = inputs == outputs and stride == 1
        self.short = None if same else conv_norm(inputs, outputs, 1, stride)

    def hybrid_forward(self, F, x):  # noqa: N803 (MXNet's name)
        y = self.second(F.relu(self.first(x)))
        return F.relu(y + (self.short(x) if self.short else x))


def resnet20():
    layers, width = [conv_norm(3, 16, 3, 1), nn.Activation("relu")], 16
    for outputs, stride in RESNET_STAGES:
        for number in range(3):
            layers.append(Residual(width, outputs, 1 if number else stride))
            width = outputs
    return chain(*layers, nn.GlobalAvgPool2D(), nn.Dense(10, in_units=64))


class Words(gluon.HybridBlock):
    def __init__(self, vocabulary=10_000, width=512):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.recurrent = rnn.LSTM(width, 2, input_size=width)
        self.out = nn.Dense(vocabulary, flatten=False, in_units=width)

    def hybrid_forward(self, F, x):  # noqa: N803 (MXNet's name)
        return self.out(self.recurrent(self.embed(x)))


def cosmo():
    layers, widths = [], (4, 16, 32, 64)
    for inputs, outputs in zip(widths, widths[1:]):  # noqa: B905 (older Pythons, too)
        conv = nn.Conv3D(outputs, 3, padding=1, in_channels=inputs)
        layers += [conv, nn.LeakyReLU(0.3), nn.MaxPool3D(2)]
    head = nn.Dense(128, in_units=4096), nn.LeakyReLU(0.3), nn.Dense(4, in_units=128)
    return chain(*layers, *head)


def given(rng):
    return {
        "mlp": lambda: (rng.randn(128, 784), rng.randint(10, size=128)),
        "resnet20": lambda: (rng.randn(64, 3, 32, 32), rng.randint(10, size=64)),
        "lstm": lambda: rng.randint(10_000, size=(2, 35, 32)),
        "cosmo": lambda: (rng.randn(8, 4, 32, 32, 32), rng.randn(8, 4)),
    }


MODELS = {"mlp": mlp, "resnet20": resnet20, "lstm": Words, "cosmo": cosmo}


def measure(args):
    mx.random.seed(0)
    net = MODELS[args.workload]()
    x, target = map(mx.nd.array, given(np.random.RandomState(0))[args.workload]())
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=True)
    sums = args.workload == "cosmo"
    loss_of = gluon.loss.L2Loss() if sums else gluon.loss.SoftmaxCrossEntropyLoss()
    target = target if sums else target.reshape(-1)
    batch = target.shape[0]
    settings = {"learning_rate": 1e-3, "momentum": 0.9}
    trainer = gluon.Trainer(net.collect_params(), "sgd", settings)
    times = []
    for _ in range(WARM_UP + args.steps):
        begun = perf_counter()
        with autograd.record():
            y = net(x)
            loss = loss_of(y if sums else y.reshape((-1, y.shape[-1])), target)
        loss.backward()
        trainer.step(batch)
        mx.nd.waitall()
        times.append(perf_counter() - begun)
    return {
        "peer": "mxnet",
        "version": mx.__version__,
        "workload": args.workload,
        "ms_per_step": round(median(times[WARM_UP:]) * 1e3, 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "loss": round(float(loss.mean().asscalar()), 4),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=MODELS)
    parser.add_argument("--steps", type=int, default=30)
    print(json.dumps(measure(parser.parse_args())), flush=True)


if __name__ == "__main__":
    main()
