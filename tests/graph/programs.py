"""Random programs over tensors: the same function run eagerly or captured."""

import numpy as np

from hpctrain import ops
from hpctrain.autograd import Tensor
from hpctrain.graph.execute import Executor
from hpctrain.graph.plan import make_plan


def random_program(seed, length=12):
    """Return (function, leaves, inputs): ``function(*inputs)`` reads the leaves too.

    All values are matrices of shape (6, 6), (4, 9) or (9, 4), so that views, transposes,
    products and broadcasts all occur.
    """
    rng = np.random.default_rng(seed)

    def fresh(shape):
        return Tensor(rng.uniform(0.5, 1.5, shape), dtype=np.float64)

    leaves = [fresh((6, 6)), fresh((6,)), fresh((6, 6))]
    inputs = [fresh((6, 6)), fresh((6, 6))]
    script = [(int(rng.integers(10)), rng.integers(0, 1000, 3).tolist()) for _ in range(length)]

    def function(*given):
        pool = [*given, leaves[0], leaves[2]]
        for choice, (i, j, k) in script:
            a, b = pool[i % len(pool)], pool[j % len(pool)]
            pool.append(_operation(choice, a, b, leaves[1], k))
        return ops.sum(pool[-1] * pool[-2]), pool[-1], pool[-3]

    return function, leaves, inputs


def _operation(choice, a, b, vector, k):
    plain = [
        lambda: a + b,
        lambda: a * b,
        lambda: ops.tanh(a),
        lambda: ops.matmul(a, b) / 6.0,
        lambda: ops.reshape(a, (4, 9)).T.reshape((6, 6)),
        lambda: a.T,
        lambda: ops.relu(a - vector),
        lambda: a[k % 3 : k % 3 + 3].sum(axis=0, keepdims=True) + b,
        lambda: ops.concat([a[:2], b[2:]], axis=0),
        lambda: ops.sigmoid(a) * ops.sigmoid(a),
    ]
    return plain[choice]()


def wasteful_program(seed, length=14):
    """Return (function, leaves, inputs) as `random_program` does, full of what passes remove.

    Neutral constants of both kinds of zero, undone and repeated movements, casts there and
    back, constants that are computed, and zeros of both signs and NaN among the numbers.
    """
    rng = np.random.default_rng(seed)

    def fresh(shape):
        values = rng.uniform(-1.5, 1.5, shape)
        values[rng.random(shape) < 0.2] = rng.choice([0.0, -0.0, np.inf, np.nan])
        return Tensor(values, dtype=np.float64)

    leaves, inputs = [fresh((4, 6)), fresh((6,))], [fresh((4, 6)), fresh((6, 4))]
    script = [(int(rng.integers(16)), rng.integers(0, 1000, 2).tolist()) for _ in range(length)]

    def function(*given):
        pool = [*given, leaves[0]]
        for choice, (i, j) in script:
            a, b = pool[i % len(pool)], pool[j % len(pool)]
            a = a if a.shape == (4, 6) else a.T
            b = b if b.shape == (4, 6) else ops.transpose(b, (1, 0))
            pool.append(_waste(choice, a, b, leaves[1]))
        return ops.sum(pool[-1]), pool[-1], pool[-2]

    return function, leaves, inputs


def _waste(choice, a, b, vector):
    plain = [
        lambda: a * 1.0,
        lambda: a + 0.0,
        lambda: a + Tensor(np.array(-0.0)) + b,
        lambda: (a - 0.0) / 1.0,
        lambda: ops.negative(-a) * vector,
        lambda: a.T.T.T,
        lambda: ops.reshape(ops.reshape(a, (24,)), (4, 6)) + a.T.reshape((24,)).reshape((4, 6)),
        lambda: ops.relu(ops.relu(a)),
        lambda: ops.maximum(a, a) + ops.where(b > 0.0, a, a),
        lambda: ops.cast(ops.cast(ops.cast(a, "float32"), "float64"), "float32").astype(
            "float64"
        ),
        lambda: ops.cast(ops.cast(b > 0.5, "int64"), "float64") * a,
        lambda: a * ops.ones_like(b) - ops.zeros_like(b),
        lambda: (
            ops.flip(ops.flip(a, 1), 1) * (Tensor(np.full(6, 2.0)) * Tensor(np.full(6, 0.5)))
        ),
        lambda: ops.concat([a], 0) + ops.pad(b, ((0, 0), (0, 0))),
        lambda: ops.broadcast_to(ops.broadcast_to(vector, (4, 6)), (4, 6)) + ops.tanh(a.T).T,
        lambda: ops.identity(a.T).T @ ops.reshape(b[0:6], (6, 4)) @ ops.tanh(b),
    ]
    return plain[choice]()


def channels_first_program(seed):
    """Return (function, leaves, inputs): images with channels first among windowed operations.

    Elementwise operations, concatenations and residuals stand between transposes.
    """
    rng = np.random.default_rng(seed)
    script = rng.integers(0, 9, 8).tolist()
    weights = [Tensor(rng.standard_normal((6, k, k, 6)).astype("f4") / k) for k in (1, 3)]
    vectors = [Tensor(rng.standard_normal(6).astype("f4")) for _ in range(2)]
    image = Tensor(rng.standard_normal((3, 6, 5, 4)).astype("f4"))

    def function(x):
        other = x
        for choice in script:
            x, other = _first(choice, x, other, weights, vectors), x
        return ops.sum(ops.mean(x, (2, 3))), x, ops.tanh(other)

    return function, [*weights, *vectors], [image]


def _first(choice, x, other, weights, vectors):
    def last(operation):
        return ops.transpose(operation(ops.transpose(x, (0, 2, 3, 1))), (0, 3, 1, 2))

    column = ops.reshape(vectors[0], (6, 1, 1))
    plain = [
        lambda: ops.relu(x),
        lambda: x + other,
        lambda: ops.tanh(x) * column,
        lambda: last(lambda t: ops.conv(t, weights[0])),
        lambda: last(lambda t: ops.conv(t, weights[1], padding=1)),
        lambda: last(lambda t: ops.batch_norm(t, *vectors)[0]),
        lambda: last(lambda t: ops.max_pool(t, (3, 3), (1, 1), ((1, 1), (1, 1)))[0]),
        lambda: ops.concat([ops.sigmoid(x)[:, :3], other[:, 3:]], 1),
        lambda: x * ops.mean(x, (2, 3), keepdims=True) + ops.sum(other, 1, keepdims=True),
    ]
    return plain[choice]()


def run_plan(graph, leaves, inputs):
    """Return the outputs of one run of the plan of ``graph``."""
    outputs = [np.empty(graph.specs[v].shape, graph.specs[v].dtype) for v in graph.outputs]
    Executor(make_plan(graph), leaves, dict(enumerate(outputs)))(inputs)
    return outputs
