"""Models with tables of embeddings, trained with servers, and what their letters weigh."""

import numpy as np
from replicas import SCHEDULE, Model, parameters

from hpctrain import ops
from hpctrain.autograd import Tensor, record
from hpctrain.comm.letter import HEADER_BYTES
from hpctrain.comm.post import Post

WORDS = 3  # of a sample


def words(height=400, width=4, tables=1):
    """Embeddings and a dense layer: 3 words to 5 classes, from one table or two."""
    shapes = {"table": (height, width), "w": (5, WORDS * width * tables), "b": (5,)}
    if tables == 2:
        shapes = {"table": (height, width), "other": (height, width), **shapes}
    model = Model(parameters(shapes), None)

    def net(ids):
        t = model.tensor
        found = [ops.embedding(ids, t("table"))]
        if tables == 2:
            found.append(ops.embedding(ids, t("other")))
        rows = [ops.reshape(x, (ids.shape[0], WORDS * width)) for x in found]
        return ops.dense(ops.concat(rows, 1) if tables == 2 else rows[0], t("w"), t("b"))

    model.net = net
    return model


def sentences(sizes, height=400, seed=5):
    """Batches of so many samples: word numbers and classes."""
    rng = np.random.default_rng(seed)
    return [(rng.integers(0, height, (n, WORDS)), rng.integers(0, 5, n)) for n in sizes]


def twin(model, batches, optimizer, clip_norm=0.0):
    """Train eagerly on whole batches; return the parameters."""
    states = {
        n: optimizer.make_state(p.data().size, np.float64) for n, p in model.parameters.items()
    }
    for step, (ids, labels) in enumerate(batches):
        with record():
            losses = ops.softmax_cross_entropy(model.net(Tensor(ids)), Tensor(labels))
            mean = ops.sum(losses) * (1.0 / len(ids))
        mean.backward()
        grads = {n: p.grad().asnumpy().reshape(-1) for n, p in model.parameters.items()}
        norm = sum(float((g**2).sum()) for g in grads.values()) ** 0.5
        for name, parameter in model.parameters.items():
            optimizer.update(
                parameter.data().array.reshape(-1), grads[name], states[name],
                lr=SCHEDULE.lr(step), step=step,
                scale=clip_norm / norm if 0 < clip_norm < norm else 1.0,
            )  # fmt: skip
    return {n: p.data().asnumpy().copy() for n, p in model.parameters.items()}


class Scales:
    """Weighs all letters that this rank sends, while it is entered."""

    def __init__(self, monkeypatch):
        self.nbytes = 0
        send = Post.send

        def weighed(post, letter, dest, tag):
            self.nbytes += letter.blocks * HEADER_BYTES
            return send(post, letter, dest, tag)

        monkeypatch.setattr(Post, "send", weighed)
