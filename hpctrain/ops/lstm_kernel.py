"""Kernels of the long short-term memory: a loop over time around few matrix products.

Dimension key: T steps, B sequences, I inputs, H states. Gates lie side by side in the order
i, f, g, o; all steps of the input are multiplied at once, and so are the weight gradients.
"""

from typing import Any

from hpctrain.autograd import Spec

__all__ = [
    "lstm_backward", "lstm_backward_scratch", "lstm_forward", "lstm_scratch",
    "thin_product",
]  # fmt: skip

# OpenBLAS multiplies matrices of up to a million products without packing them first; for
# one step of a recurrence that is 1.6 times as fast (32 x 512 by 512 x 2048, Sapphire Rapids).
UNPACKED = 1_000_000


def lstm_scratch(x: Spec, h0: Spec) -> list[Spec]:
    """Return the specs of the recurrent products and of a state of one step, and two rows."""
    batch, width = h0.shape
    row = h0.with_shape((4 * width,))
    return [h0.with_shape((batch, 4 * width)), h0, row, row]


def lstm_forward(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    """Write y, h_n, c_n, gates (after their functions) and cells from the six inputs."""
    (x, h, c, w_x, w_h, bias), (y, h_n, c_n, gates, cells) = ins, outs
    product, state, *rows = scratch
    _half_angles(*rows)
    flat = gates.reshape(x.shape[0] * x.shape[1], w_x.shape[0])
    xp.matmul(x.reshape(flat.shape[0], x.shape[2]), w_x.T, out=flat)
    for t in range(x.shape[0]):
        now, cell = gates[t], cells[t]
        thin_product(xp, h, w_h, product)
        xp.add(product, bias, out=product)
        xp.add(now, product, out=now)
        _activate(xp, now, *rows)
        i, f, g, o = quarters(now)
        xp.multiply(f, c, out=cell)
        xp.multiply(i, g, out=state)
        xp.add(cell, state, out=cell)
        xp.tanh(cell, out=state)
        h, c = xp.multiply(o, state, out=y[t]), cell
    h_n[...] = h
    c_n[...] = c


def lstm_backward_scratch(x: Spec, h0: Spec) -> list[Spec]:
    """Return the specs of all gate gradients, all former states, ones, and three states."""
    steps, (batch, width) = x.shape[0], h0.shape
    sizes = [(steps, batch, 4 * width), (steps, batch, width), (1, steps * batch)]
    return [*[h0.with_shape(s) for s in sizes], h0, h0, h0]


def lstm_backward(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    """Write dx, dh0, dc0, dw_x, dw_h and dbias.

    ``ins`` are the cotangents of y, h_n, c_n, then x, h0, c0, w_x, w_h, then y, gates, cells.
    """
    dy, dh_n, dc_n, x, h0, c0, w_x, w_h, y, gates, cells = ins
    dx, dh, dc, dw_x, dw_h, dbias = outs
    dgates, former, ones, *states = scratch
    dh[...] = dh_n
    dc[...] = dc_n
    for t in range(x.shape[0] - 1, -1, -1):
        xp.add(dh, dy[t], out=dh)
        before = cells[t - 1] if t else c0
        _step_back(xp, (gates[t], cells[t], before), (dh, dc, dgates[t]), states)
        xp.matmul(dgates[t], w_h, out=dh)
    if x.shape[0]:
        former[0] = h0
        former[1:] = y[:-1]
    rows = x.shape[0] * x.shape[1]
    flat = dgates.reshape(rows, w_x.shape[0])
    ones[...] = 1
    xp.matmul(flat, w_x, out=dx.reshape(rows, x.shape[2]))
    xp.matmul(flat.T, x.reshape(rows, x.shape[2]), out=dw_x)
    xp.matmul(flat.T, former.reshape(rows, w_h.shape[1]), out=dw_h)
    xp.matmul(ones, flat, out=dbias[None])


def quarters(gates: Any) -> list[Any]:
    """View (B, 4 H) as four (B, H)."""
    width = gates.shape[1] // 4
    return [gates[:, i * width : (i + 1) * width] for i in range(4)]


def thin_product(xp: Any, a: Any, weight: Any, out: Any) -> None:
    """Write ``a @ weight.T`` for few rows ``a``, in pieces that need no packing."""
    count, (rows, depth) = a.shape[0], weight.shape
    most = UNPACKED // max(1, count * depth)
    piece = next((n for n in (128, 64, 32, 16) if n <= most and rows % n == 0), rows)
    if piece == rows or not weight.flags.c_contiguous:
        xp.matmul(a, weight.T, out=out)
        return
    pieces = weight.reshape(-1, piece, depth).transpose(0, 2, 1)
    xp.matmul(a, pieces, out=out.reshape(count, -1, piece).transpose(1, 0, 2))


def _half_angles(scale: Any, shift: Any) -> None:
    """Set the rows with which one tanh serves all: sigmoid(x) = tanh(x / 2) / 2 + 1 / 2."""
    width = scale.size // 4
    scale[...] = shift[...] = 0.5
    scale[2 * width : 3 * width] = 1
    shift[2 * width : 3 * width] = 0


def _activate(xp: Any, gates: Any, scale: Any, shift: Any) -> None:
    """Apply sigmoid to i, f and o and tanh to g, in place."""
    xp.multiply(gates, scale, out=gates)
    xp.tanh(gates, out=gates)
    xp.multiply(gates, scale, out=gates)
    xp.add(gates, shift, out=gates)


def _step_back(xp: Any, given: Any, gradients: Any, states: Any) -> None:
    """Turn dh and dc of a step into the gradients of its gates and of the cell before."""
    (gates, cell, before), (dh, dc, dgates) = given, gradients
    i, f, g, o = quarters(gates)
    di, df, dg, do = quarters(dgates)
    squashed, term, slope = states
    xp.tanh(cell, out=squashed)
    xp.multiply(dh, o, out=term)
    xp.multiply(squashed, squashed, out=slope)
    xp.multiply(slope, term, out=slope)
    xp.subtract(term, slope, out=term)
    xp.add(dc, term, out=dc)
    xp.multiply(dh, squashed, out=term)
    _through_sigmoid(xp, term, o, slope, do)
    xp.multiply(dc, g, out=term)
    _through_sigmoid(xp, term, i, slope, di)
    xp.multiply(dc, before, out=term)
    _through_sigmoid(xp, term, f, slope, df)
    xp.multiply(dc, i, out=term)
    _through_tanh(xp, term, g, slope, dg)
    xp.multiply(dc, f, out=dc)


def _through_sigmoid(xp: Any, d: Any, s: Any, slope: Any, out: Any) -> None:
    """Write d s (1 - s)."""
    xp.subtract(1, s, out=slope)
    xp.multiply(slope, s, out=slope)
    xp.multiply(d, slope, out=out)


def _through_tanh(xp: Any, d: Any, s: Any, slope: Any, out: Any) -> None:
    """Write d (1 - s s)."""
    xp.multiply(s, s, out=slope)
    xp.subtract(1, slope, out=slope)
    xp.multiply(d, slope, out=out)
