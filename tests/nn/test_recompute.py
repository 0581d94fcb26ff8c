"""Marked blocks keep what goes in and what comes out, and nothing else changes."""

import numpy as np
import pytest

from hpctrain import nn, ops
from hpctrain.autograd import Tensor, record

pytestmark = pytest.mark.serial
X = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)


def made(marked, hybrid):
    """Return a net of two equal parts, each with state of its own."""
    net = nn.HybridSequential()
    for _ in range(2):
        part = nn.HybridSequential()
        part.add(
            nn.Dense(6, "tanh", in_units=6),
            nn.BatchNorm(in_channels=6),
            nn.Dropout(0.5),
            nn.Dense(6, "sigmoid", in_units=6),
        )
        net.add(nn.recompute(part) if marked else part)
    net.initialize(seed=2)
    net.hybridize(hybrid)
    return net


def trained(net, steps=2):
    """Return all that a few backward passes give: losses, gradients, parameters, state."""
    results = []
    x = Tensor(X)
    x.attach_grad()
    for _ in range(steps):
        with record():
            losses = ops.square(net(x)).sum(axis=1)
        losses.backward()
        results += [losses.asnumpy().copy(), x.grad.asnumpy().copy()]
        parameters = net.collect_params().values()
        results += [p.grad().asnumpy().copy() for p in parameters if p.grad_req != "null"]
        results += [p.data().asnumpy().copy() for p in parameters]
    return results


@pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybrid"])
def test_a_marked_block_gives_the_same_bits(hybrid):
    for a, b in zip(trained(made(False, False)), trained(made(True, hybrid)), strict=True):
        np.testing.assert_array_equal(a, b)


def saved_by(net):
    """Return the shapes that the tape holds for the backward pass of one call."""
    with record():
        y = net(Tensor(X))
    return [spec.shape for spec in y.creator.specs]


def test_the_tape_of_a_hybridized_block_holds_less():
    plain, marked = saved_by(made(False, True)), saved_by(made(True, True))

    assert plain.count(X.shape) > marked.count(X.shape)
    assert marked.count(X.shape) <= 3  # the output, and what lies between the two parts


def test_the_wish_can_be_taken_back():
    net = made(True, True)
    for part in net:
        nn.recompute(part, False)

    assert saved_by(net) == saved_by(made(False, True))
