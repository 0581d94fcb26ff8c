"""Programs with control flow, their inputs, and the same in plain NumPy."""

import numpy as np

from hpctrain import control, ops
from hpctrain.autograd import Tensor


def tensors(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [Tensor(rng.standard_normal(s) * 0.5) for s in shapes]


def cell(x, h, w, b):
    """Use state and parameters more than once."""
    return ops.tanh(ops.matmul(x + h, w) * h + b) + h * b


def np_cell(x, h, w, b):
    return np.tanh((x + h) @ w * h + b) + h * b


def recurrent(x, h, w, b):
    def body(part, state):
        new = cell(part, state, w, b)
        return new, new

    y, last = control.foreach(body, x, h * b)
    return y * y, last * w[0]


def np_recurrent(x, h, w, b):
    state, rows = h * b, []
    for part in x:
        state = np_cell(part, state, w, b)
        rows.append(state)
    return np.stack(rows) ** 2, state * w[0]


def lists(x, h, w, b):
    """Two data, two states in a nested list, outputs that are no states, one of them unused."""

    def body(parts, states):
        (p, q), (s, (r,)) = parts, states
        new = cell(p, s, w, b)
        return [new * r, ops.exp(q) * w[0]], [new, [r * 0.9 + ops.mean(q)]]

    outputs, (last, (r,)) = control.foreach(body, [x, x * 2], [h, [h + 1]])
    return outputs[0], last * r


def np_lists(x, h, w, b):
    s, r, rows = h, h + 1, []
    for p, q in zip(x, x * 2, strict=True):
        s = np_cell(p, s, w, b)
        rows.append(s * r)
        r = r * 0.9 + q.mean()
    return np.stack(rows), s * r


def nested(x, h, w, b):
    """A loop in a loop, a choice in that, all of which read what is outside."""

    def inner(part, state):
        def more():
            return state * part + b

        def less():
            return ops.tanh(state) - w[1] * part

        new = control.cond(ops.sum(part) > 0, more, less)
        return new * b, new

    def outer(part, state):
        y, new = control.foreach(inner, part, ops.tanh(state))
        return ops.sum(y, 0) * w[0], ops.matmul(new, w)

    rows = x[:, 0].reshape(1, *x.shape[:1], x.shape[2])
    y, last = control.foreach(outer, ops.concat([rows, rows * 2]), h[0])
    return y, last


def np_nested(x, h, w, b):
    state, out = h[0], []
    for part in (x[:, 0], x[:, 0] * 2):
        s, total = np.tanh(state), 0
        for p in part:
            s = s * p + b if p.sum() > 0 else np.tanh(s) - w[1] * p
            total = total + s * b
        out.append(total * w[0])
        state = s @ w
    return np.stack(out), state


def halving(x, h, w, b):
    """As many steps as it takes, which depends on the data."""

    def go_on(v, n):
        return ops.sum(ops.abs(v)) > ops.abs(b[0]) * 0.2

    def func(v, n):
        new = ops.tanh(v * 0.5) * b * b
        return [new * w[0], ops.matmul(new, w)], [new, n + 1]

    outputs, (v, n) = control.while_loop(go_on, func, [h * 3, Tensor(np.array(0))], 7)
    return outputs[0], outputs[1] + 0.0, v * b, ops.cast(n, "float64") * 1.0


def np_halving(x, h, w, b):
    v, n = h * 3, 0
    y, z = np.zeros((7, *h.shape)), np.zeros((7, *h.shape))
    while n < 7 and np.abs(v).sum() > abs(b[0]) * 0.2:
        v = np.tanh(v * 0.5) * b * b
        y[n], z[n] = v * w[0], v @ w
        n += 1
    return y, z, v * b, np.float64(n)


def chosen(x, h, w, b):
    y = control.cond(
        lambda p, q: ops.sum(p) > 0,
        lambda p, q: [p * w[0] + q[0] * b, ops.exp(p)],
        lambda p, q: [p * p * w[1], p - q[1]],
        [h, x],
    )
    return y[0] * b, y[1]


def np_chosen(x, h, w, b):
    if h.sum() > 0:
        return (h * w[0] + x[0] * b) * b, np.exp(h)
    return h * h * w[1] * b, h - x[1]


PROGRAMS = {
    "recurrent": (recurrent, np_recurrent), "lists": (lists, np_lists),
    "nested": (nested, np_nested), "halving": (halving, np_halving),
    "chosen": (chosen, np_chosen),
}  # fmt: skip
SHAPES = ((5, 2, 3), (2, 3), (3, 3), (3,))
