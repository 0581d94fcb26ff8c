"""The operations: every row of the primitive table, and the functions that apply them.

A module holds a family. Each of its rows is written in one place: what comes out (shape and
dtype), the kernel that computes it into arrays it is given, and the gradient rule, written
in operations again. A public function brings its arguments into the form of the row (tensors,
axes counted from the front, tuples) and applies it; it does nothing else. So whatever is
written with these functions runs at once, is recorded for gradients, or is captured as a
graph, by the mode of the moment.

The kernels are written against one array module ``xp``, NumPy or CuPy, and allocate nothing
on the way: results and scratch arrays are given, so that a plan can lay them out in one
arena beforehand. Inputs may have any strides, since movement operations give views. What
makes NumPy fast on one core stands in `blocks`: blocks that stay in cache, and inner loops
that are long.

Shapes follow NumPy's conventions; images and sequences have their channels last. Integers
that index are int64 or int32; comparisons give bool.
"""

from hpctrain.ops.activations import gelu, leaky_relu, relu, sigmoid, silu, softplus, tanh
from hpctrain.ops.attention import attention, self_attention
from hpctrain.ops.compare import (
    clip,
    equal,
    greater,
    greater_equal,
    isfinite,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    not_equal,
    where,
)
from hpctrain.ops.conv import conv, conv_transpose
from hpctrain.ops.cross_entropy import softmax_cross_entropy
from hpctrain.ops.elementwise import (
    add,
    cast,
    divide,
    identity,
    maximum,
    minimum,
    multiply,
    ones_like,
    power,
    subtract,
    zeros_like,
)
from hpctrain.ops.erf import erf
from hpctrain.ops.gather import embedding, one_hot, pick, take
from hpctrain.ops.layer_norm import layer_norm
from hpctrain.ops.linalg import dense, matmul
from hpctrain.ops.movement import (
    broadcast_to,
    expand_dims,
    flatten,
    flip,
    repeat,
    reshape,
    squeeze,
    tile,
    transpose,
)
from hpctrain.ops.norm import batch_norm, batch_norm_inference
from hpctrain.ops.pool import avg_pool, global_mean, max_pool
from hpctrain.ops.random import advance, dropout
from hpctrain.ops.recurrent import gru, lstm
from hpctrain.ops.reduce import argmax, max, mean, min, sum, sum_to
from hpctrain.ops.sequence import (
    sequence_last,
    sequence_mask,
    sequence_reverse,
    valid_steps,
)
from hpctrain.ops.slicing import concat, pad, slice, split, stack, unstack
from hpctrain.ops.softmax import log_softmax, logsumexp, softmax
from hpctrain.ops.sync_norm import sync_batch_norm
from hpctrain.ops.unary import (
    abs,
    exp,
    expm1,
    log,
    log1p,
    negative,
    reciprocal,
    rsqrt,
    sign,
    sqrt,
    square,
)

__all__ = [
    "abs",
    "add",
    "advance",
    "argmax",
    "attention",
    "avg_pool",
    "batch_norm",
    "batch_norm_inference",
    "broadcast_to",
    "cast",
    "clip",
    "concat",
    "conv",
    "conv_transpose",
    "dense",
    "divide",
    "dropout",
    "embedding",
    "equal",
    "erf",
    "exp",
    "expand_dims",
    "expm1",
    "flatten",
    "flip",
    "gelu",
    "global_mean",
    "greater",
    "greater_equal",
    "gru",
    "identity",
    "isfinite",
    "layer_norm",
    "leaky_relu",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logsumexp",
    "lstm",
    "matmul",
    "max",
    "max_pool",
    "maximum",
    "mean",
    "min",
    "minimum",
    "multiply",
    "negative",
    "not_equal",
    "one_hot",
    "ones_like",
    "pad",
    "pick",
    "power",
    "reciprocal",
    "relu",
    "repeat",
    "reshape",
    "rsqrt",
    "self_attention",
    "sequence_last",
    "sequence_mask",
    "sequence_reverse",
    "sigmoid",
    "sign",
    "silu",
    "slice",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "subtract",
    "sum",
    "sum_to",
    "sync_batch_norm",
    "take",
    "tanh",
    "tile",
    "transpose",
    "unstack",
    "valid_steps",
    "where",
    "zeros_like",
]
