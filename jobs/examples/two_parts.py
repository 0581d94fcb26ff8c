"""Run a model of two parts on slices of a batch, over devices and ranks, and join the outputs.

    python jobs/examples/two_parts.py
    mpirun -n 3 python jobs/examples/two_parts.py --devices 2

Each rank takes its rows of the batch and divides them over its devices, each of which has a
copy of the parameters. The joined outputs are compared with those of one device that runs the
whole batch: they are the same rows.
"""

import argparse

import numpy as np

import hpctrain as mx
from hpctrain import autograd, nn
from hpctrain.comm import world
from hpctrain.io.sampler import part


class TwoParts(nn.Block):
    """Features of an image, then a classifier of the features."""

    def __init__(self, classes, **names):
        super().__init__(**names)
        with self.name_scope():
            self.features = nn.HybridSequential()
            with self.features.name_scope():
                self.features.add(nn.Conv2D(8, 3, padding=1, activation="relu"))
                self.features.add(nn.MaxPool2D(2))
            self.classifier = nn.HybridSequential()
            with self.classifier.name_scope():
                self.classifier.add(nn.Dense(32, activation="tanh"))
                self.classifier.add(nn.Dense(classes))

    def forward(self, x):
        return self.classifier(self.features(x))


def joined(net, batch, devices, group):
    """Return the outputs of the whole batch, computed in slices by all devices and ranks."""
    mine = part(len(batch), group.rank, group.size)
    used = devices[: mine.stop - mine.start]  # a device without rows has nothing to do
    outputs = []
    if used:
        slices = mx.gluon.utils.split_and_load(batch[mine], used, even_split=False)
        outputs = [net(x) for x in slices]
    whole = np.zeros((len(batch), 10), np.float32)
    if outputs:
        whole[mine] = np.concatenate([out.asnumpy() for out in outputs])
    group.allreduce(whole)  # every row is on one rank, the others add zeros
    return whole


def main(words=None):
    """Print the parts, and how far the joined outputs are from the whole batch's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=22)
    parser.add_argument("--devices", type=int, default=2, help="devices of each rank")
    args = parser.parse_args(words)

    with world.start() as ranks, autograd.predict_mode():
        devices = [mx.cpu(i) for i in range(args.devices)]
        net = TwoParts(10, prefix="model_")
        net.initialize("xavier", ctx=devices, seed=1)
        net.hybridize()
        batch = np.random.default_rng(0).random((args.batch, 1, 28, 28), np.float32)
        net(mx.nd.array(batch[:1]))  # tells the lengths that depend on the input
        slices = joined(net, batch, devices, ranks.group)
        whole = net(mx.nd.array(batch)).asnumpy()
        if ranks.rank == 0:
            for name, child in net.children.items():
                print(f"{name}: {child.prefix}, {len(child.collect_params())} parameters")
            print(f"{args.batch} rows over {ranks.size} ranks x {args.devices} devices")
            print(f"largest difference {np.abs(slices - whole).max():.1e}")
        if not np.allclose(slices, whole, 1e-5, 1e-5):
            raise SystemExit("two_parts: the joined outputs are not those of the whole batch")


if __name__ == "__main__":
    main()
