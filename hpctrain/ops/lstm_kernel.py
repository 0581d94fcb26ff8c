"""Kernels of the long short-term memory: a loop over time around few matrix products.

Dimension key: T steps, B sequences, I inputs, H states. Gates lie side by side in the order
i, f, g, o. All steps of the input are multiplied at once; the products of the gradient of
the weights are rows of their own.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.autograd.narrow import NARROW
from hpctrain.ops.cells import Loop, lstm_back, lstm_cell, stepped, still, usable
from hpctrain.ops.dnnl_steps import Piece, StepProduct, half_angles, plain_factors, whole
from hpctrain.ops.linalg import rows_by_weight, rows_by_weight_scratch

__all__ = [
    "BACK",
    "GATES",
    "NARROW_BACK",
    "NARROW_GATES",
    "back_scratch",
    "back_step",
    "input_scratch",
    "lstm_backward",
    "lstm_backward_scratch",
    "lstm_forward",
    "lstm_scratch",
    "thin_product",
]  # fmt: skip

# OpenBLAS multiplies matrices of up to a million products without packing them first; for
# one step of a recurrence that is 1.6 times as fast (32 x 512 by 512 x 2048, Sapphire Rapids).
UNPACKED = 1_000_000


def halves(columns: int) -> Sequence[Piece]:
    """Cut a product that is only stored in two."""
    cut = columns // 2
    spans = (0, cut), (cut, columns - cut)
    return [Piece(start, width, columns, start) for start, width in spans if width]


def _gate_pieces(columns: int) -> Sequence[Piece]:
    width = columns // 4
    functions = ("sigmoid", "sigmoid", "tanh", "sigmoid")
    return [
        Piece(i * width, width, columns, i * width, adds=True, function=name)
        for i, name in enumerate(functions)
    ]


GATES = StepProduct(True, True, _gate_pieces)
BACK = StepProduct(False, False, halves)
NARROW_GATES = StepProduct(
    True, True, functools.partial(whole, adds=True, function="gates"), NARROW
)
NARROW_BACK = StepProduct(False, False, whole, NARROW)


def input_scratch(x: Spec, w_x: Spec) -> Sequence[Spec]:
    """Return the scratch of the product of the input of all steps."""
    return rows_by_weight_scratch(x.with_shape((x.shape[0] * x.shape[1], x.shape[2])), w_x)


def lstm_scratch(specs: Sequence[Spec]) -> list[Spec]:
    """Return the specs of a state, of the products of one step, two rows, and of bytes."""
    x, h0, _, w_x, w_h, _ = specs
    batch, width = h0.shape
    row = h0.with_shape((4 * width,))
    product = h0.with_shape((batch, 4 * width))
    made = [*GATES.scratch(batch, w_h), *NARROW_GATES.scratch(batch, w_h)]  # one, or none
    return [h0, product, row, row, *input_scratch(x, w_x), *made]


def lstm_forward(xp: Any, ins: Any, outs: Any, scratch: Any, loop: Loop | None = None) -> None:
    """Write y, h_n, c_n, gates (after their functions) and cells from the six inputs."""
    (x, h, c, w_x, w_h, bias), (y, h_n, c_n, gates, cells) = ins, outs
    flat = gates.reshape(x.shape[0] * x.shape[1], w_x.shape[0])
    rows_by_weight(xp, x.reshape(flat.shape[0], x.shape[2]), w_x, flat, scratch[4:])
    for product in (GATES, NARROW_GATES):
        step = product.ready(xp, h.shape[0], w_h, bias, scratch[-1])
        if step is not None:
            break
    else:
        step = _gate_step(xp, w_h, bias, scratch)
    h = xp.ascontiguousarray(h)
    if (loop := usable(loop, xp, gates.dtype)) is not None:
        cell = stepped(loop, lstm_cell, quarters(gates), (c, cells), (cells, y))
    else:
        cell = functools.partial(_cell, xp, (gates, c), (cells, y), scratch[0])
    for t in range(x.shape[0]):
        step(h, gates[t])
        cell(t)
        h, c = y[t], cells[t]
    h_n[...] = h
    c_n[...] = c


def _cell(xp: Any, given: Any, made: Any, state: Any, t: int) -> None:
    """Write cell and state of step t."""
    (gates, first), (cells, y) = given, made
    i, f, g, o = quarters(gates[t])
    cell = xp.multiply(f, cells[t - 1] if t else first, out=cells[t])
    xp.multiply(i, g, out=state)
    xp.add(cell, state, out=cell)
    xp.tanh(cell, out=state)
    xp.multiply(o, state, out=y[t])


def _gate_step(xp: Any, w_h: Any, bias: Any, scratch: Any) -> Callable[..., None]:
    """Return the function that turns the products of the input into gates, in place."""
    product, scale, shift = scratch[1:4]
    half_angles(scale, shift)
    factors = plain_factors(w_h)

    def step(h: Any, gates: Any) -> None:
        _add_product(xp, factors, bias, product, h, gates)
        xp.multiply(gates, scale, out=gates)
        xp.tanh(gates, out=gates)
        xp.multiply(gates, scale, out=gates)
        xp.add(gates, shift, out=gates)

    return step


def _add_product(xp: Any, factors: Any, bias: Any, product: Any, h: Any, gates: Any) -> None:
    w_h, rounded = factors
    thin_product(xp, rounded(h), w_h, product)
    xp.add(product, bias, out=product)
    xp.add(gates, product, out=gates)


def lstm_backward_scratch(h0: Spec, w_h: Spec) -> list[Spec]:
    """Return the specs of three states, and of bytes."""
    return [h0, h0, h0, *back_scratch(h0, w_h)]


def back_scratch(h0: Spec, w_h: Spec) -> Sequence[Spec]:
    """Return the scratch of `back_step`."""
    rows = h0.shape[0]
    return [*BACK.scratch(rows, w_h), *NARROW_BACK.scratch(rows, w_h)]


def back_step(xp: Any, rows: int, w_h: Any, scratch: Any) -> Callable[..., None]:
    """Return the function that writes the product of gradients of gates and ``w_h``."""
    for product in (BACK, NARROW_BACK):
        if (step := product.ready(xp, rows, w_h, None, scratch)) is not None:
            return step
    return functools.partial(_back_product, xp, *plain_factors(w_h))


def lstm_backward(xp: Any, ins: Any, outs: Any, scratch: Any, loop: Loop | None = None) -> None:
    """Write the gradients of the gates before their functions, dh0 and dc0.

    ``ins`` are the cotangents of y, h_n, c_n, then c0, w_h, gates, cells; the gradients may
    be written over the gates.
    """
    (dy, dh_n, dc_n, c0, w_h, gates, cells), (dgates, dh, dc) = ins, outs
    dh[...] = dh_n
    dc[...] = dc_n
    step, steps = back_step(xp, dh.shape[0], w_h, scratch[-1]), dy.shape[0]
    if (loop := usable(loop, xp, gates.dtype)) is not None:
        now = *quarters(gates), cells, still(dh, steps), dy, still(dc, steps)
        made = *quarters(dgates), still(dc, steps)
        back = stepped(loop, lstm_back, now, (c0, cells), made)
    else:
        given = (gates, cells, c0), (dh, dc, dgates), dy
        back = functools.partial(_cell_back, xp, *given, scratch[:3])
    for t in range(steps - 1, -1, -1):
        back(t)
        step(dgates[t], dh)


def _cell_back(xp: Any, given: Any, gradients: Any, dy: Any, scratch: Any, t: int) -> None:
    """Turn dh and dc of step t into the gradients of its gates and of the cell before."""
    (gates, cells, c0), (dh, dc, dgates) = given, gradients
    xp.add(dh, dy[t], out=dh)
    before = cells[t - 1] if t else c0
    _step_back(xp, (gates[t], cells[t], before), (dh, dc, dgates[t]), scratch)


def _back_product(xp: Any, w_h: Any, rounded: Any, dgates: Any, dh: Any) -> None:
    xp.matmul(rounded(dgates), w_h, out=dh)


def quarters(gates: Any) -> list[Any]:
    """View (..., 4 H) as four (..., H)."""
    width = gates.shape[-1] // 4
    return [gates[..., i * width : (i + 1) * width] for i in range(4)]


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


def _step_back(xp: Any, given: Any, gradients: Any, scratch: Any) -> None:
    """Turn dh and dc of a step into the gradients of its gates and of the cell before.

    Every gate is read for the last time before its gradient is written. A gate at a time,
    as little as possible leaves the cache: 0.20 ms a step of 32 x 512, where slopes of all
    gates at once took 0.28.
    """
    (gates, cell, before), (dh, dc, dgates) = given, gradients
    (i, f, g, o), (di, df, dg, do) = quarters(gates), quarters(dgates)
    a, b, c = scratch
    xp.tanh(cell, out=a)
    _slope(xp, o, a, b)
    xp.multiply(a, a, out=a)
    xp.subtract(1, a, out=a)
    xp.multiply(a, o, out=a)
    xp.multiply(a, dh, out=a)
    xp.add(dc, a, out=dc)
    xp.multiply(b, dh, out=do)
    xp.multiply(dc, f, out=a)
    _slope(xp, f, before, b)
    xp.multiply(b, dc, out=df)
    _slope(xp, i, g, b)
    xp.subtract(1, g, out=c)
    xp.multiply(c, i, out=c)
    xp.add(1, g, out=dg)
    xp.multiply(c, dg, out=c)
    xp.multiply(b, dc, out=di)
    xp.multiply(c, dc, out=dg)
    dc[...] = a


def _slope(xp: Any, s: Any, factor: Any, out: Any) -> None:
    """Write s (1 - s) times the factor: the slope of a sigmoid, and what it stands before."""
    xp.subtract(1, s, out=out)
    xp.multiply(out, s, out=out)
    xp.multiply(out, factor, out=out)
