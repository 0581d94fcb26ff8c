"""Write what MXNet computes, for tests that compare with it.

    python3 -m venv mx && mx/bin/pip install numpy==1.23.5 mxnet==1.9.1
    mx/bin/python tests/symbol/oracle/make_mxnet.py

Writes beside itself: operators.npz (outputs, gradients and state of every case in
mxnet_cases.py), nets.npz (the same for two networks and one trainer), *-symbol.json.
"""

import sys
from pathlib import Path

import mxnet as mx
import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from mxnet_cases import CASES  # noqa: E402
from mxnet_nets import NETS, net_arrays  # noqa: E402


def operator_results(case):
    arrays = case.arrays()
    plain = len(arrays) - case.aux
    names = [f"in{i}" for i in range(len(arrays))]
    symbol = getattr(mx.sym, case.op, None) or getattr(mx.sym._internal, case.op)
    symbol = symbol(*map(mx.sym.var, names), name="node", **case.attrs)
    given = dict(zip(names, map(mx.nd.array, arrays), strict=True))
    aux = {name: given.pop(name) for name in names[plain:]}
    requests = case.requests()
    grads = {n: mx.nd.zeros(given[n].shape) for n, r in requests.items() if r == "write"}
    executor = symbol.bind(mx.cpu(), given, grads, requests, aux)
    outputs = executor.forward(is_train=True)
    if grads:
        executor.backward([mx.nd.array(case.cotangent(out.shape)) for out in outputs])
    found = {f"out{i}": out.asnumpy() for i, out in enumerate(outputs)}
    found.update({f"grad-{name}": value.asnumpy() for name, value in grads.items()})
    # Running statistics move during the forward pass, once.
    found.update({f"aux-{name}": value.asnumpy() for name, value in aux.items()})
    return found


def net_results(name, symbol):
    shapes, arguments, states = net_arrays(name, symbol)
    executor = symbol.simple_bind(mx.cpu(), grad_req="write", **shapes)
    for own, given in ((executor.arg_dict, arguments), (executor.aux_dict, states)):
        for key, value in given.items():
            own[key][:] = value
    found = {"predict": executor.forward(is_train=False)[0].asnumpy()}
    found["train"] = executor.forward(is_train=True)[0].asnumpy()
    executor.backward()
    for key, value in executor.grad_dict.items():
        if key not in shapes:
            found[f"grad-{key}"] = value.asnumpy()
    found.update({f"aux-{k}": v.asnumpy() for k, v in executor.aux_dict.items()})
    return found


def fitted():
    """Parameters after two epochs of Module.fit over two devices, with momentum and wd."""
    symbol = NETS["mlp"](mx.sym)
    _, arguments, states = net_arrays("mlp", symbol)
    rng = np.random.RandomState(7)
    data, label = rng.standard_normal((22, 12)).astype("f4"), rng.randint(0, 4, 22).astype("f4")
    module = mx.mod.Module(symbol, context=[mx.cpu(0), mx.cpu(1)])
    module.fit(
        mx.io.NDArrayIter(data, label, 8, label_name="softmax_label"),
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
        arg_params={k: mx.nd.array(v) for k, v in arguments.items() if k.startswith("fc")},
        aux_params={k: mx.nd.array(v) for k, v in states.items()},
        num_epoch=2,
    )
    return {k: v.asnumpy() for k, v in module.get_params()[0].items()}


def trained():
    """A Gluon Trainer's steps over two devices: gradients are summed, then scaled."""
    devices = [mx.cpu(0), mx.cpu(1)]
    weight = mx.gluon.Parameter("weight", shape=(3,))
    weight.initialize(mx.init.One(), ctx=devices)
    trainer = mx.gluon.Trainer(
        [weight], "sgd", {"learning_rate": 0.5, "momentum": 0.5, "wd": 0.1}
    )
    for step in range(3):
        with mx.autograd.record():
            losses = [(i + 1 + step) * weight.data(ctx) ** 2 for i, ctx in enumerate(devices)]
        for loss in losses:
            loss.backward()
        trainer.step(4)
    return weight.data(devices[0]).asnumpy()


def main():
    found = {}
    for case in CASES:
        for key, value in operator_results(case).items():
            found[f"{case.name}/{key}"] = value
    np.savez_compressed(HERE / "operators.npz", **found)
    found = {"trainer": trained()}
    found.update({f"fit/{key}": value for key, value in fitted().items()})
    for name, make in NETS.items():
        symbol = make(mx.sym)
        symbol.save(str(HERE / f"{name}-symbol.json"))
        for key, value in net_results(name, symbol).items():
            found[f"{name}/{key}"] = value
    np.savez_compressed(HERE / "nets.npz", **found)


if __name__ == "__main__":
    main()
