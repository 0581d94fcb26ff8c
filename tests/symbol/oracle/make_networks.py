"""Write what MXNet computes of whole networks, for tests that compare with it.

    python3 -m venv mx && mx/bin/pip install numpy==1.23.5 mxnet==1.9.1
    mx/bin/python tests/symbol/oracle/make_networks.py [FOLDER]

Writes beside itself networks/NAME-symbol.json, networks.npz (outputs, gradients, state; large
gradients as products with seeded vectors, see mxnet_zoo.summary), a file of arrays, a symbol
as an old release wrote it, and checkpoints of a training. With a FOLDER it compares instead:
loads NAME-symbol.json from there, which another program wrote, and tells how much outputs and
gradients differ.
"""

import json
import sys
from pathlib import Path

import mxnet as mx
import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from mxnet_digits import BATCH, OPTIMIZER, digits, network  # noqa: E402
from mxnet_zoo import ZOO, draw, image, summary, text, words  # noqa: E402

WHOLE = 600  # elements of a gradient that is kept as it is


def cells():
    """Networks that MXNet's own cells, and blocks, make."""

    def unrolled(make):
        def build(sym):
            def cell(net):
                outputs, _ = make().unroll(4, net, layout="TNC", merge_outputs=True)
                return outputs

            return words(sym, cell)

        return text(build)

    def stacked():
        stack = mx.rnn.SequentialRNNCell()
        stack.add(mx.rnn.LSTMCell(6, prefix="lstm_"))
        stack.add(mx.rnn.ResidualCell(mx.rnn.GRUCell(6, prefix="gru_")))
        stack.add(
            mx.rnn.BidirectionalCell(
                mx.rnn.RNNCell(4, prefix="l_"), mx.rnn.RNNCell(4, prefix="r_")
            )
        )
        return stack

    # No PReLU: in a symbol MXNet's gradient of its slope is not what finite differences give.
    def convolutions(sym):
        nn = mx.gluon.nn
        net = nn.HybridSequential(prefix="net_")
        with net.name_scope():
            net.add(
                nn.Conv2D(4, 3, in_channels=3), nn.BatchNorm(in_channels=4), nn.LeakyReLU(0.2),
                nn.MaxPool2D(), nn.Conv2D(4, 3, groups=2, in_channels=4), nn.Swish(),
                nn.GlobalAvgPool2D(), nn.Dense(5, in_units=4),
            )  # fmt: skip
        return sym.SoftmaxOutput(net(sym.Variable("data")), name="softmax")

    def lstm(net):
        return mx.gluon.rnn.LSTM(6, num_layers=2, input_size=5, prefix="lstm_")(net)

    fused = mx.rnn.FusedRNNCell
    return {
        "gluon_cnn": image(convolutions, 4, 3, 16, 16),
        "gluon_lstm": text(lambda sym: words(sym, lstm)),
        "cells_unrolled": unrolled(stacked),
        "cells_fused": unrolled(
            lambda: fused(6, 2, "lstm", bidirectional=True, prefix="lstm_")
        ),
        "cells_unfused": unrolled(lambda: fused(6, 1, "gru", prefix="gru_").unfuse()),
    }


def results(name, net, symbol):
    requests = net.requests(symbol.list_arguments())
    executor = symbol.simple_bind(mx.cpu(), grad_req=requests, **net.shapes)
    for arrays in (executor.arg_dict, executor.aux_dict):
        for key, value in arrays.items():
            value[:] = draw(name, key, value.shape, net.below.get(key))
    found = {"predict": executor.forward(is_train=False)[0].asnumpy()}
    found["train"] = executor.forward(is_train=True)[0].asnumpy()
    executor.backward()
    for kind, arrays in (("grad", executor.grad_dict), ("aux", executor.aux_dict)):
        for key, value in arrays.items():
            if value is not None:
                array = value.asnumpy()
                small = array.size <= WHOLE and kind == "grad" and key.endswith(("t", "data"))
                found[f"{kind}-{key}"] = array if small else summary(name, key, array)
    return found


def compare(folder):
    for name, net in {**ZOO, **cells()}.items():
        theirs = mx.sym.load(str(Path(folder) / f"{name}-symbol.json"))
        ours = mx.sym.load(str(HERE / "networks" / f"{name}-symbol.json"))
        a, b = results(name, net, theirs), results(name, net, ours)
        assert a.keys() == b.keys(), name
        print(name, max(np.abs(a[key] - b[key]).max() for key in a))


def old_files():
    """A file as release 0.8 wrote it, and what MXNet makes of it."""
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    x = mx.sym.LeakyReLU(mx.sym.BatchNorm(x, name="bn"), act_type="prelu", name="prelu")
    text = json.loads(mx.sym.SoftmaxOutput(x, name="softmax").tojson())
    variables = {n["name"] for n in text["nodes"] if "moving" in n["name"]}
    nodes = [n for n in text["nodes"] if n["name"] not in variables]
    place = {n["name"]: i for i, n in enumerate(nodes)}
    for node in nodes:
        old = [text["nodes"][i]["name"] for i, *_ in node["inputs"]]
        node["inputs"] = [[place[name], 0] for name in old if name in place]
        node["param"] = node.pop("attrs", {}) if node["op"] != "null" else {}
        node.pop("attrs", None)
        node["backward_source_id"] = -1
        if node["name"] == "fc":
            node["attr"] = {"ctx_group": "stage1", "lr_mult": "2", "bias_wd_mult": "4"}
        if node["name"] == "bn":
            node["attr"] = {"ctx_group": "stage2"}
        if node["name"] == "data":
            node["attr"] = {"weight_lr_mult": "7", "wd_mult": "1"}
    arguments = [i for i, n in enumerate(nodes) if n["op"] == "null"]
    old = {"nodes": nodes, "arg_nodes": arguments, "heads": [[len(nodes) - 1, 0]]}
    (HERE / "release-0.8-symbol.json").write_text(json.dumps(old, indent=1))
    mx.sym.load_json(json.dumps(old)).save(str(HERE / "release-0.8-upgraded-symbol.json"))


def checkpoints():
    """A training of two epochs, and one more from its checkpoint."""
    prefix = str(HERE / "digits")
    data, label = digits()
    mx.random.seed(3)
    for begin in (0, 2):
        module = mx.mod.Module.load(prefix, 2) if begin else mx.mod.Module(network(mx.sym))
        source = mx.io.NDArrayIter(data, label, BATCH, label_name="softmax_label")
        module.fit(
            source, optimizer="sgd", optimizer_params=OPTIMIZER, begin_epoch=begin,
            num_epoch=begin + 2 - begin // 2, initializer=mx.init.Xavier(),
        )  # fmt: skip
        module.save_checkpoint(prefix, 3 if begin else 2)


def main():
    found = {}
    (HERE / "networks").mkdir(exist_ok=True)
    for name, net in {**ZOO, **cells()}.items():
        with mx.name.NameManager():
            symbol = net.build(mx.sym)
        symbol.save(str(HERE / "networks" / f"{name}-symbol.json"))
        for key, value in results(name, net, symbol).items():
            found[f"{name}/{key}"] = value
    np.savez_compressed(HERE / "networks.npz", **found)
    old_files()
    checkpoints()
    kinds = {"arg:f4": "float32", "arg:f2": "float16", "arg:f8": "float64", "aux:u1": "uint8",
             "i4": "int32", "i1": "int8", "i8": "int64"}  # fmt: skip
    six = mx.nd.arange(6).reshape((2, 3))
    mx.nd.save(str(HERE / "types.params"), {k: six.astype(v) for k, v in kinds.items()})


if __name__ == "__main__":
    compare(sys.argv[1]) if sys.argv[1:] else main()
