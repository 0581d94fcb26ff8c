"""Train a symbol from a file with ``Module.fit``, on one rank or several.

    python jobs/examples/module_fit.py
    mpirun -n 2 python jobs/examples/module_fit.py --epochs 3

The network is symbol.json beside this file, in the layout of MXNet 1.x; ``--write`` writes it
anew. Every rank reads its own part of the records in data/mnist; gradients are summed over the
ranks by allreduce, and the accuracy is that of the whole test set, the same on every rank.
"""

import argparse
import logging
import sys
from pathlib import Path

import hpctrain as mx

HERE = Path(__file__).parent
DATA = HERE.parent.parent / "data" / "mnist"


def network():
    """Return a small convolutional network for images of 28 x 28 pixels."""
    net = mx.sym.Variable("data")
    for number, filters in enumerate((8, 16), 1):
        net = mx.sym.Convolution(net, kernel=(3, 3), num_filter=filters, name=f"conv{number}")
        net = mx.sym.BatchNorm(net, name=f"bn{number}")
        net = mx.sym.Activation(net, act_type="relu", name=f"relu{number}")
        net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), name=f"pool{number}")
    net = mx.sym.FullyConnected(mx.sym.Flatten(net, name="flat"), num_hidden=64, name="fc1")
    net = mx.sym.Activation(net, act_type="relu", name="relu3")
    net = mx.sym.FullyConnected(net, num_hidden=10, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def main(words=None):
    """Train, and print the accuracy on the test set."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write symbol.json and end")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="records of a batch, all ranks")
    parser.add_argument("--kvstore", default="dist_sync")
    parser.add_argument("--prefix", default="", help="where checkpoints go, as run/mnist")
    args = parser.parse_args(words)
    if args.write:
        network().save(HERE / "symbol.json")
        return

    kv = mx.kvstore.create(args.kvstore)
    logging.basicConfig(
        level=logging.INFO if kv.rank == 0 else logging.WARNING,
        format="%(message)s", stream=sys.stdout,
    )  # fmt: skip
    parts = {
        "batch_size": max(1, args.batch // kv.num_workers),
        "num_parts": kv.num_workers,
        "part_index": kv.rank,
    }
    train = mx.io.RecordIter(DATA / "train", shuffle=True, seed=1, **parts)
    test = mx.io.RecordIter(DATA / "test", **parts)
    module = mx.mod.Module(mx.sym.load(HERE / "symbol.json"), context=mx.cpu())
    saves = args.prefix and kv.rank == 0
    module.fit(
        train,
        eval_data=test,
        eval_metric=["acc", "ce"],
        kvstore=kv,
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-4},
        initializer=mx.init.Xavier(),
        batch_end_callback=mx.callback.Speedometer(parts["batch_size"], 20),
        epoch_end_callback=mx.callback.do_checkpoint(args.prefix) if saves else None,
        num_epoch=args.epochs,
    )
    accuracy = dict(module.score(test, "acc"))["accuracy"]
    if kv.rank == 0:
        print(f"validation accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
