"""A small task, and a network for it, that MXNet begins and others go on with."""

import numpy as np

BATCH = 16
OPTIMIZER = {"learning_rate": 0.2, "momentum": 0.9, "wd": 0.001}


def digits(count=96, seed=5):
    """Images of four kinds, a bright quarter in noise, and which quarter it is."""
    rng = np.random.RandomState(seed)
    labels = rng.randint(0, 4, count)
    images = rng.randint(0, 120, (count, 1, 8, 8))
    for image, label in zip(images, labels, strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[0, row : row + 4, column : column + 4] += 135
    return (images / 255).astype(np.float32), labels.astype(np.float32)


def network(sym):
    net = sym.Variable("data")
    net = sym.Convolution(net, kernel=(3, 3), pad=(1, 1), num_filter=4, name="conv")
    net = sym.Activation(
        sym.BatchNorm(net, name="bn", fix_gamma=False), act_type="relu", name="relu"
    )
    net = sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool")
    net = sym.FullyConnected(sym.Flatten(net, name="flat"), num_hidden=4, name="fc")
    return sym.SoftmaxOutput(net, name="softmax")
