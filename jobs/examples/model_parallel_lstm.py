"""Train an LSTM whose layers are on different ranks, in the style of MXNet's example.

    python jobs/examples/model_parallel_lstm.py
    mpirun -n 3 python jobs/examples/model_parallel_lstm.py --layers 4 --epochs 3

Each layer is a group of the symbol, and each group goes to a rank: `Module` is told which by
``group2ctx``. A rank has the weights of its groups alone. While one rank computes a layer at
step t, the one before it is at step t + 1. All ranks read the same batches; the numbers do not
depend on how many ranks there are. The task: say the sum of the last two digits, modulo 10.
"""

import argparse
import logging

import numpy as np

import hpctrain as mx

DIGITS = 10


def cell(x, state, weights, hidden):
    """Return what one step of an LSTM gives out, and its new state."""
    gates = mx.sym.FullyConnected(x, weights[0], weights[1], num_hidden=4 * hidden)
    if state is not None:
        gates = gates + mx.sym.FullyConnected(
            state[0], weights[2], weights[3], num_hidden=4 * hidden
        )
    parts = mx.sym.SliceChannel(gates, num_outputs=4, axis=1)
    into, forget, out = (mx.sym.Activation(parts[i], act_type="sigmoid") for i in range(3))
    kept = into * mx.sym.Activation(parts[3], act_type="tanh")
    if state is not None:
        kept = kept + forget * state[1]
    made = out * mx.sym.Activation(kept, act_type="tanh")
    return made, (made, kept)


def network(length, layers, hidden):
    """Return the unrolled network: groups embed, layer0, layer1, ..., decode."""
    names = ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")
    with mx.AttrScope(ctx_group="embed"):
        digits = mx.sym.Embedding(
            mx.sym.var("data"), input_dim=DIGITS, output_dim=hidden, name="embed"
        )
        digits = mx.sym.SliceChannel(digits, num_outputs=length, axis=1, squeeze_axis=True)
    weights, states = [], [None] * layers
    for layer in range(layers):
        with mx.AttrScope(ctx_group=f"layer{layer}"):
            weights.append([mx.sym.var(f"l{layer}_{name}") for name in names])
    made = []
    for step in range(length):
        x = digits[step]
        for layer in range(layers):
            with mx.AttrScope(ctx_group=f"layer{layer}"):
                x, states[layer] = cell(x, states[layer], weights[layer], hidden)
        made.append(x)
    with mx.AttrScope(ctx_group="decode"):
        x = mx.sym.Concat(*[mx.sym.expand_dims(x, axis=1) for x in made], dim=1)
        x = mx.sym.reshape(x, shape=(-1, hidden))
        x = mx.sym.FullyConnected(x, num_hidden=DIGITS, name="decode")
        label = mx.sym.reshape(mx.sym.var("softmax_label"), shape=(-1,))
        return mx.sym.SoftmaxOutput(x, label, name="softmax")


def sequences(count, length, seed):
    """Return digits and sums, the same on every rank."""
    digits = np.random.RandomState(seed).randint(0, DIGITS, (count, length))
    before = np.concatenate([np.zeros((count, 1), int), digits[:, :-1]], axis=1)
    return digits.astype("f4"), ((digits + before) % DIGITS).astype("f4")


def main(words=None):
    """Train, and print the accuracy on sequences that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=48)
    parser.add_argument("--length", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args(words)
    ranks = mx.kv.everyone()
    logging.basicConfig(level=logging.INFO if ranks.rank == 0 else logging.WARNING)

    places = {f"layer{i}": i * ranks.size // args.layers for i in range(args.layers)}
    places |= {"embed": 0, "decode": ranks.size - 1}
    symbol = network(args.length, args.layers, args.hidden)
    module = mx.mod.Module(symbol, group2ctx=places)
    train = mx.io.NDArrayIter(*sequences(2560, args.length, 1), batch_size=64)
    test = mx.io.NDArrayIter(*sequences(256, args.length, 2), batch_size=64)
    module.fit(
        train,
        eval_data=test,
        eval_metric=["acc", "ce"],
        optimizer="adam",
        optimizer_params={"learning_rate": 0.01, "rescale_grad": 1 / (64 * args.length)},
        initializer=mx.init.Xavier(),
        num_epoch=args.epochs,
    )
    accuracy = dict(module.score(test, "acc"))["accuracy"]
    if ranks.rank == 0:
        print(f"validation accuracy {accuracy:.4f} on {ranks.size} ranks")


if __name__ == "__main__":
    main()
