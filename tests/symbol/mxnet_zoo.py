"""The networks of MXNet's image-classification, recurrent and factorisation examples, narrow.

Each is a function of a module of symbols, MXNet's or ours. The kinds of layers, their order and
how they are joined are those of the examples; widths, depths and images are small.
"""

import functools
import zlib
from dataclasses import dataclass, field

import numpy as np

CLASSES = 5


def _head(sym, net, flat=True):
    net = sym.Flatten(net, name="flatten") if flat else net
    net = sym.FullyConnected(net, num_hidden=CLASSES, name="fc_out")
    return sym.SoftmaxOutput(net, name="softmax")


def _relu(sym, net, name):
    return sym.Activation(net, act_type="relu", name=name)


def _pool(sym, net, name, kernel=3, stride=2, pad=0, kind="max", **more):
    return sym.Pooling(
        net, kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad), pool_type=kind,
        name=name, **more,
    )  # fmt: skip


def _conv(sym, net, width, kernel, name, stride=1, pad=0, **more):
    def pair(n):
        return n if isinstance(n, tuple) else (n, n)

    return sym.Convolution(
        net, num_filter=width, kernel=pair(kernel), stride=pair(stride), pad=pair(pad),
        name=name, **more,
    )  # fmt: skip


def _unit(sym, net, width, kernel, name, stride=1, pad=0, **bn):
    """Convolution, normalisation, rectifier."""
    net = _conv(sym, net, width, kernel, f"{name}_conv", stride, pad, no_bias=bool(bn))
    net = sym.BatchNorm(net, name=f"{name}_bn", **bn)
    return _relu(sym, net, f"{name}_relu")


def mlp(sym):
    net = sym.Flatten(sym.Variable("data"), name="flat")
    for i, width in enumerate((12, 8), 1):
        net = sym.FullyConnected(net, num_hidden=width, name=f"fc{i}")
        net = _relu(sym, net, f"relu{i}")
    return _head(sym, net, flat=False)


def lenet(sym):
    net = sym.Variable("data")
    for i, width in enumerate((4, 6), 1):
        net = _conv(sym, net, width, 5, f"conv{i}")
        net = sym.Activation(net, act_type="tanh", name=f"tanh{i}")
        net = _pool(sym, net, f"pool{i}", 2)
    net = sym.FullyConnected(sym.Flatten(net, name="flat"), num_hidden=10, name="fc1")
    return _head(sym, sym.Activation(net, act_type="tanh", name="tanh3"), flat=False)


def alexnet(sym):
    net = _relu(sym, _conv(sym, sym.Variable("data"), 6, 11, "conv1", 4), "relu1")
    net = _pool(
        sym, sym.LRN(net, alpha=0.0001, beta=0.75, knorm=2, nsize=5, name="norm1"), "pool1"
    )
    net = _relu(sym, _conv(sym, net, 8, 5, "conv2", pad=2, num_group=2), "relu2")
    net = _pool(
        sym, sym.LRN(net, alpha=0.0001, beta=0.75, knorm=2, nsize=5, name="norm2"), "pool2"
    )
    for i, (width, groups) in enumerate(((8, 1), (8, 2), (6, 2)), 3):
        net = _conv(sym, net, width, 3, f"conv{i}", pad=1, num_group=groups)
        net = _relu(sym, net, f"relu{i}")
    net = sym.Flatten(_pool(sym, net, "pool3"), name="flatten")
    for i in (1, 2):
        net = _relu(sym, sym.FullyConnected(net, num_hidden=12, name=f"fc{i}"), f"relu_fc{i}")
        net = sym.Dropout(net, p=0.0, name=f"drop{i}")
    return _head(sym, net, flat=False)


def vgg(sym):
    net = sym.Variable("data")
    for i, (count, width) in enumerate(((1, 4), (1, 6), (2, 6), (2, 8)), 1):
        for j in range(1, count + 1):
            net = _relu(sym, _conv(sym, net, width, 3, f"conv{i}_{j}", pad=1), f"relu{i}_{j}")
        net = _pool(sym, net, f"pool{i}", 2)
    net = sym.Flatten(net, name="flatten")
    for i in (6, 7):
        net = _relu(sym, sym.FullyConnected(net, num_hidden=10, name=f"fc{i}"), f"relu{i}")
        net = sym.Dropout(net, p=0.0, name=f"drop{i}")
    return _head(sym, net, flat=False)


def googlenet(sym):
    def plain(net, width, kernel, name, stride=1, pad=0):
        return _relu(
            sym, _conv(sym, net, width, kernel, f"conv_{name}", stride, pad), f"relu_{name}"
        )

    def inception(net, widths, name):
        one, reduce3, three, reduce5, five, proj = widths
        a = plain(net, one, 1, f"{name}_1x1")
        b = plain(plain(net, reduce3, 1, f"{name}_3x3r"), three, 3, f"{name}_3x3", pad=1)
        c = plain(plain(net, reduce5, 1, f"{name}_5x5r"), five, 5, f"{name}_5x5", pad=2)
        d = plain(_pool(sym, net, f"{name}_pool", 3, 1, 1), proj, 1, f"{name}_proj")
        return sym.Concat(a, b, c, d, name=f"{name}_concat")

    net = _pool(sym, plain(sym.Variable("data"), 6, 7, "1", 2, 3), "pool1",
                pooling_convention="full")  # fmt: skip
    net = _pool(sym, plain(plain(net, 4, 1, "2"), 8, 3, "3", pad=1), "pool3")
    net = inception(net, (3, 2, 4, 2, 3, 3), "in3a")
    net = _pool(sym, inception(net, (4, 3, 4, 2, 3, 3), "in3b"), "pool4")
    net = inception(net, (3, 3, 5, 2, 3, 3), "in4a")
    net = sym.Pooling(net, kernel=(2, 2), stride=(1, 1), pool_type="avg", name="pool5")
    return _head(sym, net)


def inception_bn(sym):
    def unit(*args, **more):
        return _unit(sym, *args, **more, fix_gamma=False, eps=1e-5 + 1e-12, momentum=0.9)

    def same(net, widths, kind, name):
        one, reduce3, three, proj = widths
        a = unit(net, one, 1, f"{name}_1x1")
        b = unit(unit(net, reduce3, 1, f"{name}_3x3r"), three, 3, f"{name}_3x3", pad=1)
        c = unit(net, reduce3, 1, f"{name}_d3r")
        for i in range(2):
            c = unit(c, three, 3, f"{name}_d3_{i}", pad=1)
        d = unit(_pool(sym, net, f"{name}_pool", 3, 1, 1, kind), proj, 1, f"{name}_proj")
        return sym.Concat(a, b, c, d, name=f"{name}_concat")

    def smaller(net, reduce3, three, name):
        a = unit(unit(net, reduce3, 1, f"{name}_3x3r"), three, 3, f"{name}_3x3", 2, 1)
        b = _pool(sym, net, f"{name}_pool", 3, 2, 1)
        return sym.Concat(a, b, name=f"{name}_concat")

    net = _pool(sym, unit(sym.Variable("data"), 6, 7, "1", 2, 3), "pool1", 3, 2, 1)
    net = unit(unit(net, 4, 1, "2r"), 8, 3, "2", pad=1)
    net = same(net, (3, 2, 4, 3), "avg", "3a")
    net = smaller(net, 3, 4, "3c")
    net = same(net, (3, 2, 3, 2), "max", "5b")
    net = sym.Pooling(net, kernel=(7, 7), global_pool=True, pool_type="avg", name="pool")
    return _head(sym, net)


def inception_v3(sym):
    def unit(net, width, kernel, name, stride=1, pad=0):
        return _unit(sym, net, width, kernel, name, stride, pad, fix_gamma=True)

    def mixed(net, name, kind):
        a = unit(net, 3, 1, f"{name}_a")
        b = unit(unit(net, 2, 1, f"{name}_b0"), 3, 5, f"{name}_b1", pad=2)
        c = unit(net, 3, 1, f"{name}_c0")
        for i in (1, 2):
            c = unit(c, 3, 3, f"{name}_c{i}", pad=1)
        d = unit(_pool(sym, net, f"{name}_pool", 3, 1, 1, kind), 3, 1, f"{name}_d")
        return sym.Concat(a, b, c, d, name=f"{name}_concat")

    def factored(net, name):
        a = unit(net, 3, 1, f"{name}_a")
        b = unit(net, 2, 1, f"{name}_b0")
        b = unit(b, 3, (1, 7), f"{name}_b1", pad=(0, 3))
        b = unit(b, 3, (7, 1), f"{name}_b2", pad=(3, 0))
        d = unit(_pool(sym, net, f"{name}_pool", 3, 1, 1, "avg"), 3, 1, f"{name}_d")
        return sym.Concat(a, b, d, name=f"{name}_concat")

    def split(net, name):
        a = unit(net, 3, 1, f"{name}_a")
        b0 = unit(a, 3, (1, 3), f"{name}_b0", pad=(0, 1))
        b1 = unit(a, 3, (3, 1), f"{name}_b1", pad=(1, 0))
        return sym.Concat(b0, b1, unit(net, 2, 1, f"{name}_c"), name=f"{name}_concat")

    net = unit(sym.Variable("data"), 4, 3, "conv", 2)
    net = unit(unit(net, 4, 3, "conv_1"), 6, 3, "conv_2", pad=1)
    net = _pool(sym, net, "pool1")
    net = mixed(net, "mixed", "avg")
    down = unit(net, 4, 3, "mixed_3_conv", 2)
    net = sym.Concat(down, _pool(sym, net, "mixed_3_pool"), name="mixed_3_concat")
    net = split(factored(net, "mixed_4"), "mixed_9")
    net = sym.Pooling(net, kernel=(2, 2), stride=(1, 1), pool_type="avg", name="global_pool")
    return _head(sym, net)


def resnet(sym, groups=1, first=False):
    """Pre-activation units with bottlenecks; with ``groups`` or ``first`` those of others."""
    bn = functools.partial(sym.BatchNorm, fix_gamma=False, eps=2e-5, momentum=0.9)

    def conv(net, width, kernel, name, stride=1, pad=0, **more):
        return _conv(sym, net, width, kernel, name, stride, pad, no_bias=True, **more)

    def before(net, width, stride, same, name):
        act = _relu(sym, bn(net, name=f"{name}_bn1"), f"{name}_relu1")
        y = _relu(
            sym,
            bn(conv(act, width // 4, 1, f"{name}_conv1"), name=f"{name}_bn2"),
            f"{name}_relu2",
        )
        y = conv(y, width // 4, 3, f"{name}_conv2", stride, 1)
        y = conv(
            _relu(sym, bn(y, name=f"{name}_bn3"), f"{name}_relu3"), width, 1, f"{name}_conv3"
        )
        return y + (net if same else conv(act, width, 1, f"{name}_sc", stride))

    def after(net, width, stride, same, name):
        y = _relu(
            sym,
            bn(conv(net, width // 2, 1, f"{name}_conv1"), name=f"{name}_bn1"),
            f"{name}_relu1",
        )
        y = conv(y, width // 2, 3, f"{name}_conv2", stride, 1, num_group=groups)
        y = _relu(sym, bn(y, name=f"{name}_bn2"), f"{name}_relu2")
        y = bn(conv(y, width, 1, f"{name}_conv3"), name=f"{name}_bn3")
        short = (
            net if same else bn(conv(net, width, 1, f"{name}_sc", stride), name=f"{name}_sc_bn")
        )
        return _relu(sym, y + short, f"{name}_relu")

    unit = after if groups > 1 or first else before
    net = sym.BatchNorm(sym.Variable("data"), fix_gamma=True, eps=2e-5, name="bn_data")
    net = _relu(sym, bn(conv(net, 8, 7, "conv0", 2, 3), name="bn0"), "relu0")
    net = _pool(sym, net, "pool0", 3, 2, 1)
    for stage, width in enumerate((8, 16), 1):
        net = unit(net, width, stage, False, f"stage{stage}_unit1")
        net = unit(net, width, 1, True, f"stage{stage}_unit2")
    if unit is before:
        net = _relu(sym, bn(net, name="bn1"), "relu1")
    net = sym.Pooling(net, global_pool=True, kernel=(7, 7), pool_type="avg", name="pool1")
    return _head(sym, net)


def resnext(sym):
    return resnet(sym, groups=4)


def resnet_v1(sym):
    return resnet(sym, first=True)


def mobilenet(sym):
    def unit(net, width, kernel, name, stride=1, pad=0, groups=1):
        net = _conv(sym, net, width, kernel, name, stride, pad, no_bias=True, num_group=groups)
        return _relu(sym, sym.BatchNorm(net, name=f"{name}_bn", fix_gamma=True), f"{name}_relu")

    net = unit(sym.Variable("data"), 4, 3, "conv_1", 2, 1)
    for i, (old, new, stride) in enumerate(
        ((4, 8, 1), (8, 12, 2), (12, 12, 1), (12, 16, 2)), 2
    ):
        net = unit(net, old, 3, f"conv_{i}_dw", stride, 1, old)
        net = unit(net, new, 1, f"conv_{i}")
    net = sym.Pooling(net, kernel=(4, 4), stride=(1, 1), pool_type="avg", name="global_pool")
    return _head(sym, net)


def mobilenet_v2(sym):
    def unit(net, width, kernel, name, stride=1, pad=0, groups=1, act=True):
        net = _conv(sym, net, width, kernel, name, stride, pad, no_bias=True, num_group=groups)
        net = sym.BatchNorm(net, name=f"{name}_bn", fix_gamma=False, momentum=0.99)
        return sym.clip(net, a_min=0, a_max=6, name=f"{name}_relu6") if act else net

    net = unit(sym.Variable("data"), 6, 3, "first", 2, 1)
    for i, (width, stride, short) in enumerate(((6, 1, True), (8, 2, False), (8, 1, True))):
        inside = unit(net, 18, 1, f"b{i}_exp")
        inside = unit(inside, 18, 3, f"b{i}_dw", stride, 1, 18)
        inside = unit(inside, width, 1, f"b{i}_lin", act=False)
        net = sym.elemwise_add(net, inside, name=f"b{i}_sum") if short else inside
    net = sym.Pooling(net, kernel=(1, 1), global_pool=True, pool_type="avg", name="pool")
    return _head(sym, net)


def lstm_by_hand(sym):
    """Two layers over four steps, with the first states as data, as before there were cells."""
    steps, hidden = 4, 6
    words = sym.Embedding(sym.Variable("data"), input_dim=11, output_dim=5, name="embed")
    words = sym.SliceChannel(words, num_outputs=steps, squeeze_axis=True, name="cut")
    states = [[sym.Variable(f"l{i}_init_{s}") for s in "ch"] for i in range(2)]
    weights = [
        {
            k: sym.Variable(f"l{i}_{k}")
            for k in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")
        }
        for i in range(2)
    ]
    tops = []
    for t in range(steps):
        x = words[t]
        for i, (w, (c, h)) in enumerate(zip(weights, states, strict=True)):
            name = f"t{t}_l{i}"
            gates = sym.FullyConnected(x, weight=w["i2h_weight"], bias=w["i2h_bias"],
                                       num_hidden=4 * hidden, name=f"{name}_i2h")  # fmt: skip
            gates = gates + sym.FullyConnected(
                h, weight=w["h2h_weight"], bias=w["h2h_bias"], num_hidden=4 * hidden,
                name=f"{name}_h2h",
            )  # fmt: skip
            parts = sym.SliceChannel(gates, num_outputs=4, name=f"{name}_slice")
            write, new, keep, out = (
                sym.Activation(parts[k], act_type=kind, name=f"{name}_{k}")
                for k, kind in enumerate(("sigmoid", "tanh", "sigmoid", "sigmoid"))
            )
            c = keep * c + write * new
            h = x = out * sym.Activation(c, act_type="tanh", name=f"{name}_act")
            states[i] = (c, h)
        tops.append(x)
    net = sym.Concat(*tops, dim=0, name="tops")
    net = sym.FullyConnected(net, num_hidden=11, name="pred")
    label = sym.transpose(sym.Variable("softmax_label"), name="turn")
    label = sym.Reshape(label, target_shape=(0,), name="flat_label")
    return sym.SoftmaxOutput(net, label=label, name="softmax")


def words(sym, cell):
    net = sym.Embedding(sym.Variable("data"), input_dim=11, output_dim=5, name="embed")
    net = cell(sym.SwapAxis(net, dim1=0, dim2=1, name="time_first"))
    net = sym.Reshape(net, shape=(-3, -1), name="rows")
    net = sym.FullyConnected(net, num_hidden=11, name="pred")
    label = sym.Reshape(sym.transpose(sym.Variable("softmax_label"), name="turn"), shape=(-1,),
                        name="flat_label")  # fmt: skip
    return sym.SoftmaxOutput(net, label=label, name="softmax")


def _fused(mode, both):
    def build(sym):
        def cell(net):
            state = sym.zeros(shape=(4 if both else 2, 0, 6), name="begin_state")
            more = (
                {"state_cell": sym.zeros(shape=(4, 0, 6), name="begin_cell")}
                if mode == "lstm"
                else {}
            )
            return sym.RNN(
                net, sym.Variable("rnn_parameters"), state, state_size=6, num_layers=2,
                mode=mode, bidirectional=both, name="rnn", **more,
            )  # fmt: skip

        return words(sym, cell)

    return build


def _factors(sym, deep):
    parts = []
    for name, count in (("user", 9), ("item", 7)):
        part = sym.Embedding(
            sym.Variable(name), input_dim=count, output_dim=6, name=f"{name}_embed"
        )
        if deep:
            part = sym.FullyConnected(sym.Flatten(part, name=f"{name}_flat"), num_hidden=5,
                                      name=f"{name}_fc")  # fmt: skip
            part = _relu(sym, part, f"{name}_relu")
        parts.append(part)
    net = sym.sum(parts[0] * parts[1], axis=1, name="dot")
    return sym.Flatten(net, name="flat")


def matrix_factorization(sym):
    return sym.LinearRegressionOutput(
        _factors(sym, False), label=sym.Variable("score"), name="lro"
    )


def deep_factorization(sym):
    return sym.MAERegressionOutput(_factors(sym, True), label=sym.Variable("score"), name="mae")


@dataclass(frozen=True)
class Net:
    """A network, what is bound to it, and how its data are drawn: numbers below a limit."""

    build: object
    shapes: dict
    below: dict = field(default_factory=dict)

    def requests(self, arguments):
        """Return which gradients are asked for: not those of labels and of numbers."""
        plain = {*self.below, "score"}
        return {name: "null" if name in plain else "write" for name in arguments}


def image(build, *shape):
    below = {"softmax_label": CLASSES}
    return Net(build, {"data": shape, "softmax_label": shape[:1]}, below)


def text(build, **more):
    shapes = {"data": (3, 4), "softmax_label": (3, 4), **more}
    return Net(build, shapes, {"data": 11, "softmax_label": 11})


def _pairs(build):
    shapes = {"user": (8,), "item": (8,), "score": (8,)}
    return Net(build, shapes, {"user": 9, "item": 7})


STATES = {f"l{i}_init_{s}": (3, 6) for i in range(2) for s in "ch"}
ZOO = {
    "mlp": image(mlp, 4, 1, 6, 6), "lenet": image(lenet, 4, 1, 28, 28),
    "alexnet": image(alexnet, 3, 3, 99, 99), "vgg": image(vgg, 3, 3, 32, 32),
    "googlenet": image(googlenet, 3, 3, 64, 64),
    "inception_bn": image(inception_bn, 4, 3, 36, 36),
    "inception_v3": image(inception_v3, 4, 3, 39, 39), "resnet": image(resnet, 4, 3, 32, 32),
    "resnet_v1": image(resnet_v1, 4, 3, 32, 32), "resnext": image(resnext, 4, 3, 32, 32),
    "mobilenet": image(mobilenet, 4, 3, 32, 32),
    "mobilenet_v2": image(mobilenet_v2, 4, 3, 24, 24),
    "lstm_by_hand": text(lstm_by_hand, **STATES),
    "lstm_fused": text(_fused("lstm", True)), "gru_fused": text(_fused("gru", False)),
    "tanh_fused": text(_fused("rnn_tanh", True)), "relu_fused": text(_fused("rnn_relu", False)),
    "matrix_factorization": _pairs(matrix_factorization),
    "deep_factorization": _pairs(deep_factorization),
}  # fmt: skip
# Built by MXNet's own cells and by Gluon, in oracle/make_networks.py.
CELLS = {
    name: text(None)
    for name in ("cells_unrolled", "cells_fused", "cells_unfused", "gluon_lstm")
} | {"gluon_cnn": image(None, 4, 3, 16, 16)}


# With the first draw one input of a rectifier is 2e-7, and rounding decides its gradient.
AGAIN = {"resnet": "/third"}


def draw(net, name, shape, below=None):
    """Return the array of an argument: a function of the two names."""
    seed = zlib.crc32(f"{net}/{name}{AGAIN.get(net, '')}".encode())
    rng = np.random.RandomState(seed & 0x7FFFFFFF)
    if below is not None:
        return rng.randint(0, below, shape).astype(np.float32)
    value = rng.standard_normal(shape)
    if name.endswith("gamma"):
        value = 1 + 0.2 * value
    elif name.endswith(("bias", "beta", "parameters")):
        value *= 0.3
    elif name.endswith("_var"):
        value = 0.5 + value**2
    elif name.endswith("weight"):
        value *= (1.5 / max(1, np.prod(shape[1:]))) ** 0.5
    return value.astype(np.float32)


def summary(net, name, array):
    """Return what stands for a gradient: its product with a seeded vector, norm and maximum."""
    flat = np.asarray(array, np.float64).ravel()
    rng = np.random.RandomState(zlib.crc32(f"{net}/{name}/v".encode()) & 0x7FFFFFFF)
    vector = rng.standard_normal(flat.size)
    return np.array([flat @ vector, np.linalg.norm(flat), np.abs(flat).max(initial=0)])
