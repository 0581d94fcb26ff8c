"""Two networks written once, for MXNet's ``sym`` and for ours."""

import zlib

import numpy as np


def mlp(sym):
    net = sym.Variable("data")
    net = sym.FullyConnected(net, num_hidden=6, name="fc1")
    net = sym.Activation(net, act_type="relu", name="relu1")
    net = sym.FullyConnected(net, num_hidden=4, name="fc2")
    return sym.SoftmaxOutput(net, name="softmax")


def lenet(sym):
    net = sym.Variable("data")
    net = sym.Convolution(
        net, kernel=(5, 5), num_filter=4, pad=(2, 2), no_bias=True, name="conv1"
    )
    net = sym.BatchNorm(net, fix_gamma=False, name="bn1")
    net = sym.Activation(net, act_type="tanh", name="tanh1")
    first = sym.Pooling(net, pool_type="max", kernel=(2, 2), stride=(2, 2), name="pool1")
    net = sym.Convolution(first, kernel=(3, 3), num_filter=4, pad=(1, 1), name="conv2")
    net = sym.BatchNorm(net, name="bn2")
    net = sym.Activation(net + first * 0.5, act_type="relu", name="relu2")
    net = sym.Pooling(net, pool_type="avg", kernel=(2, 2), stride=(2, 2), name="pool2")
    net = sym.FullyConnected(sym.Flatten(net, name="flat"), num_hidden=8, name="fc1")
    net = sym.FullyConnected(
        sym.Activation(net, act_type="relu", name="relu3"), num_hidden=5, name="fc2"
    )
    return sym.SoftmaxOutput(net, normalization="batch", name="softmax")


NETS = {"mlp": mlp, "lenet": lenet}
SHAPES = {"mlp": (4, 12), "lenet": (3, 1, 12, 12)}


def net_arrays(name, symbol):
    """Return the shapes to bind, seeded arguments, and state before the first step."""
    shapes = {"data": SHAPES[name], "softmax_label": SHAPES[name][:1]}
    arguments, _, states = symbol.infer_shape(**shapes)
    rng = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)
    found = {}
    for key, shape in zip(symbol.list_arguments(), arguments, strict=True):
        draw = (
            rng.randint(0, 4, shape) if key == "softmax_label" else rng.standard_normal(shape)
        )
        found[key] = draw.astype(np.float32) * (1 if key in shapes else 0.4)
    aux = {
        key: np.full(shape, float("var" in key), np.float32)
        for key, shape in zip(symbol.list_auxiliary_states(), states, strict=True)
    }
    return shapes, found, aux
