"""Small models, a serial twin that knows no graph and no slice, and the parallel run."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain import ops
from hpctrain.autograd import Tensor, assign, is_training, record
from hpctrain.engine import DEFAULT_LANES, create
from hpctrain.io.sampler import part
from hpctrain.nn import Parameter
from hpctrain.optim import Constant
from hpctrain.parallel.bound import DRAWS
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.program import Objective, count_correct
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.ways import connect
from hpctrain.parallel.work import LAG, Options, Work

SCHEDULE = Constant(base_lr=0.05)


@dataclass
class Model:
    """Parameters by name, and what is done with them."""

    parameters: dict[str, Parameter]
    net: Any
    together: Any = None

    def tensor(self, name):
        return self.parameters[name].data()

    @property
    def objective(self):
        return Objective(self.net, ops.softmax_cross_entropy, count_correct, self.together)


def parameters(shapes, seed=3):
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in shapes.items():
        made[name] = Parameter(name, shape, np.float64)
        made[name].set_data(rng.normal(0, 0.5, shape))
    return made


def mlp(rate=0.0):
    """Three layers, 6 to 5 classes; with dropout behind the first if ``rate``."""
    shapes = {"w1": (9, 6), "b1": (9,), "w2": (7, 9), "b2": (7,), "w3": (5, 7), "b3": (5,)}
    model = Model(parameters(shapes), None)
    if rate:
        stream = Parameter("stream", (3,), np.uint64, differentiable=False)
        stream.set_data(np.array([12345, 0, 0], np.uint64))
        model.parameters["stream"] = stream

    def net(x):
        t = model.tensor
        y = ops.tanh(ops.dense(x, t("w1"), t("b1")))
        if rate and is_training():
            y, _ = ops.dropout(y, t("stream"), rate)
            assign(t("stream"), ops.advance(t("stream")))
        y = ops.relu(ops.dense(y, t("w2"), t("b2")))
        return ops.dense(y, t("w3"), t("b3"))

    model.net = net
    return model


def twin_biases():
    """The MLP with two biases behind it: equal gradients, computed once."""
    model = mlp()
    model.parameters.update(parameters({"b4": (5,), "b5": (5,)}))
    inner = model.net
    model.net = lambda x: inner(x) + model.tensor("b4") + model.tensor("b5")
    return model


def convnet():
    """Two convolutions, a pooling and a dense layer; images of any size with 2 channels."""
    shapes = {"k1": (4, 3, 3, 2), "c1": (4,), "k2": (3, 2, 2, 4), "w": (5, 3), "b": (5,)}
    model = Model(parameters(shapes), None)

    def net(x):
        t = model.tensor
        y = ops.relu(ops.conv(x, t("k1"), t("c1"), padding=1))
        y = ops.max_pool(y, 2)[0]
        y = ops.tanh(ops.conv(y, t("k2")))
        return ops.dense(ops.mean(y, axis=(1, 2)), t("w"), t("b"))

    model.net = net
    return model


def batches(shapes, seed=11):
    """Draw a batch for each shape (samples first), with labels of 5 classes."""
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=s), rng.integers(0, 5, s[0])) for s in shapes]


def joined(batches):
    """Return the samples of several batches as one batch."""
    return tuple(map(np.concatenate, zip(*batches, strict=True)))


def serial(model, optimizer, data, clip_norm=0.0, skipped=()):
    """Train eagerly on whole batches; return the sums of losses and right answers.

    The steps in ``skipped`` change no parameter.
    """
    trained = {n: p for n, p in model.parameters.items() if p.grad_req != "null"}
    states = {n: optimizer.make_state(p.data().size, np.float64) for n, p in trained.items()}
    results = []
    for step, (x, y) in enumerate(data):
        for parameter in model.parameters.values():
            if parameter.dtype == np.uint64:
                parameter.data()[1:] = np.array([step * DRAWS, 0], np.uint64)
        with record():
            outputs = model.net(Tensor(x))
            losses = ops.softmax_cross_entropy(outputs, Tensor(y))
            mean = ops.sum(losses) * (1.0 / len(x))
        mean.backward()
        right = int((outputs.asnumpy().argmax(-1) == y).sum())
        results.append((float(losses.asnumpy().sum()), right, len(x)))
        grads = {n: p.grad().asnumpy() for n, p in trained.items()}
        if step in skipped:
            continue
        norm = sum(float((g**2).sum()) for g in grads.values()) ** 0.5
        scale = clip_norm / norm if 0 < clip_norm < norm else 1.0
        for name, parameter in trained.items():
            optimizer.update(
                parameter.data().array.reshape(-1),
                grads[name].reshape(-1),
                states[name],
                lr=SCHEDULE.lr(step) * parameter.lr_mult,
                step=step - sum(other < step for other in skipped),
                weight_decay=optimizer.weight_decay * parameter.wd_mult,
                scale=scale,
            )
    return results


def share(batch, group, unit=1):
    """Return this rank's part of a global batch: inputs, then labels."""
    total = len(batch[0])
    mine = part(total, group.rank, group.size, unit)
    *inputs, labels = (np.ascontiguousarray(a[mine]) for a in batch)
    return Work(inputs, [labels], len(labels), total, mine.start)


def trainer(
    model, optimizer, group, engine, first, options=None, slice_bytes=2**20, path=None,
    coded=None,
):  # fmt: skip
    """Return a data-parallel step that is ready for batches; on a path by its name."""
    state = ModelState(model.parameters, optimizer, slice_bytes)
    way = connect(path, group, state, options, coded) if path else None
    step = DataParallel(
        model.objective, state, optimizer, SCHEDULE, engine, group, options, way
    )
    specs = share(first, group).specs()
    if not specs[0][0].shape[0]:  # no sample here: any shape with samples will do
        specs = Work(first[:-1], first[-1:], 0, 0).specs()
    step.prepare(*specs)
    return step


def parallel(
    model, optimizer, group, data, kind="threaded", options=None, slice_bytes=2**20, path=None,
    coded=None, lanes=DEFAULT_LANES,
):  # fmt: skip
    """Train on all ranks of ``group``; return the results and the state.

    Each element of ``data`` is a batch, or a list of those that make one step.
    """
    steps = [batch if isinstance(batch, list) else [batch] for batch in data]
    with create(kind, lanes) as engine:
        step = trainer(
            model,
            optimizer,
            group,
            engine,
            steps[0][0],
            options or Options(),
            slice_bytes,
            path,
            coded,
        )
        results = trained(step, steps)
        flat = step.state.flat
        flat.move(flat.weights.copy(), flat.grads.copy())  # off the memory of the path
        step.way.free()
        return results, step.state


def trained(step, steps):
    """Make steps, each of a list of batches, and return their results."""
    pending, results = [], []
    for batches in steps:
        unit = step.options.shard or 1
        pending.append(step.step(*(share(batch, step.group, unit) for batch in batches)))
        if len(pending) > LAG:
            results.append(step.result(pending.pop(0)))
    results += [step.result(number) for number in pending]
    step.engine.wait_all()
    return results
