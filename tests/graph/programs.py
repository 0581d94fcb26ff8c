"""Random programs over tensors: the same function run eagerly or captured."""

import numpy as np

from hpctrain import ops
from hpctrain.autograd import Tensor


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
    if choice == 0:
        return a + b
    if choice == 1:
        return a * b
    if choice == 2:
        return ops.tanh(a)
    if choice == 3:
        return ops.matmul(a, b) / 6.0
    if choice == 4:
        return ops.reshape(a, (4, 9)).T.reshape((6, 6))
    if choice == 5:
        return a.T
    if choice == 6:
        return ops.relu(a - vector)
    if choice == 7:
        return a[k % 3 : k % 3 + 3].sum(axis=0, keepdims=True) + b
    if choice == 8:
        return ops.concat([a[:2], b[2:]], axis=0)
    return ops.sigmoid(a) * ops.sigmoid(a)
