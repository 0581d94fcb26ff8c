"""Deep networks, captured with loss and gradient, and a run that shows every result."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain import nn, ops
from hpctrain.autograd import Tensor, record
from hpctrain.graph.capture import capture_gradient
from hpctrain.graph.execute import Executor
from hpctrain.graph.passes import optimise
from hpctrain.graph.plan import make_plan

BATCH = 32


@dataclass
class Deep:
    """A network with made-up input, its loss and its leaves."""

    net: Any
    x: np.ndarray

    def __post_init__(self):
        self.net.initialize(seed=1)
        self.parameters = list(self.net.collect_params().values())
        self.leaves = [p.data() for p in self.parameters]
        self.wanted = [p.data() for p in self.parameters if p.grad_req != "null"]
        self.start = [t.asnumpy().copy() for t in self.leaves]

    def loss(self, x):
        return ops.square(self.net(x)).sum(axis=1)

    def captured(self):
        return capture_gradient(
            lambda x: (self.loss(x),), [Tensor(self.x).spec], self.leaves, self.wanted
        )

    def restore(self):
        for leaf, value in zip(self.leaves, self.start, strict=True):
            leaf.array[...] = value

    def run(self, plan):
        """Return loss and gradients, then all leaves as they are after the run."""
        self.restore()
        outs = [np.full(s.shape, np.nan, s.dtype) for s in specs(plan)]
        Executor(plan, [t.array for t in self.leaves])(
            [self.x, np.array(1.0, np.float32)], outs
        )
        return [*outs, *(t.asnumpy().copy() for t in self.leaves)]

    def eager(self):
        """Return the same, computed operation by operation."""
        self.restore()
        with record():
            losses = self.loss(Tensor(self.x))
        losses.backward()
        grads = [t.grad.asnumpy().copy() for t in self.wanted]
        return [losses.asnumpy(), *grads, *(t.asnumpy().copy() for t in self.leaves)]


def specs(plan):
    return [plan.graph.specs[v] for v in plan.graph.outputs]


def finish(graph):
    return make_plan(optimise(graph))


def mlp(layers, width=64):
    """Dense layers with relu."""
    net = nn.HybridSequential()
    for _ in range(layers):
        net.add(nn.Dense(width, "relu", in_units=width, weight_initializer="orthogonal"))
    return Deep(net, drawn(BATCH, width))


def convnet(layers):
    """Convolution, batch normalisation, relu and dropout, again and again."""
    net = nn.HybridSequential()
    for _ in range(layers):
        net.add(
            nn.Conv2D(4, 3, padding=1, in_channels=4, layout="NHWC"),
            nn.BatchNorm(axis=-1, in_channels=4),
            nn.Activation("relu"),
            nn.Dropout(0.25),
        )
    net.add(nn.Dense(5, in_units=4 * 6 * 6))
    return Deep(net, drawn(8, 6, 6, 4))


def drawn(*shape):
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def assert_same_bits(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
