"""Squares of results: their cotangents depend on the inputs.

So the second derivative goes through the cotangent of every gradient row as well, which a
fixed cotangent leaves out.
"""

import numpy as np
from op_cases import Case, ids, uniform, values

X = uniform(-4, 4, 3, 4, 7)
SHAPE = (2, 2, 5, 4)
NORM = [(3, 4, 6), (6,), (6,)]
STREAM = values(5, 7, 11, dtype=np.uint64)


def squared(name, inputs, loose=1.0, **attrs):
    """Return the case of the square of the first result of an operation."""

    def ours(ops, *tensors):
        result = getattr(ops, name)(*tensors, **attrs)
        return ops.square(result[0] if isinstance(result, tuple) else result)

    return Case("_".join([name, *map(str, attrs.values())]), inputs, ours, loose=loose)


CASES = [
    *(squared(n, [X]) for n in ("relu", "leaky_relu", "sigmoid", "tanh", "softplus", "silu")),
    squared("gelu", [X], approximate=True),
    squared("gelu", [X], approximate=False),
    squared("softmax", [(3, 4)]),
    squared("log_softmax", [(3, 4)]),
    squared("softmax_cross_entropy", [(3, 4), ids(4, 3)]),
    squared("dropout", [(3, 4), STREAM], rate=0.3),
    squared("batch_norm", NORM, 10, eps=1e-3),
    squared("sync_batch_norm", NORM, 10, eps=1e-3),
    squared("layer_norm", NORM, 10, eps=1e-3),
    Case(
        "sync_batch_norm_of_all", NORM,
        lambda ops, *t: tuple(map(ops.square, ops.sync_batch_norm(*t, eps=1e-3))), loose=10,
    ),
    squared("attention", [SHAPE] * 3),
    squared("attention", [SHAPE] * 3, causal=True),
    squared("self_attention", [(2, 5, 12)], heads=2),
]  # fmt: skip
