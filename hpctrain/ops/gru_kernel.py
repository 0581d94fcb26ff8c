"""Kernels of the gated recurrent unit, in the form whose reset gate acts on the product.

Dimension key: T steps, B sequences, I inputs, H states. Gates lie side by side in the order
r, z, n: h = (1 - z) n + z h_before, n = tanh(x w_n + r (h_before u_n + b_n)). The products of
the gradient of the weights are rows of their own.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.autograd.narrow import NARROW
from hpctrain.ops.cells import Loop, gru_back, gru_cell, gru_gates, stepped, still, usable
from hpctrain.ops.dnnl_steps import Piece, StepProduct, plain_factors, whole
from hpctrain.ops.linalg import rows_by_weight
from hpctrain.ops.lstm_kernel import back_scratch, back_step, input_scratch, thin_product

__all__ = [
    "GATES",
    "NARROW_GATES",
    "gru_backward",
    "gru_backward_scratch",
    "gru_forward",
    "gru_scratch",
]


def _gate_pieces(columns: int) -> Sequence[Piece]:
    """Let r and z be gates, and n's product be by itself."""
    width = columns // 3
    gates = [
        Piece(i * width, width, columns, i * width, adds=True, function="sigmoid")
        for i in range(2)
    ]
    return [*gates, Piece(2 * width, width, width, target=1)]


GATES = StepProduct(True, True, _gate_pieces)
NARROW_GATES = StepProduct(True, True, whole, NARROW)


def gru_scratch(specs: Sequence[Spec]) -> list[Spec]:
    """Return the specs of a state, of the products of one step, and of bytes."""
    x, h0, w_x, w_h, _, _ = specs
    batch, width = h0.shape
    product = h0.with_shape((batch, 3 * width))
    made = [*GATES.scratch(batch, w_h), *NARROW_GATES.scratch(batch, w_h)]  # one, or none
    return [h0, product, *input_scratch(x, w_x), *made]


def gru_forward(xp: Any, ins: Any, outs: Any, scratch: Any, loop: Loop | None = None) -> None:
    """Write y, h_n, gates (after their functions) and inner, the n part of the products."""
    (x, h, w_x, w_h, b_x, b_h), (y, h_n, gates, inner) = ins, outs
    flat = gates.reshape(x.shape[0] * x.shape[1], w_x.shape[0])
    rows_by_weight(xp, x.reshape(flat.shape[0], x.shape[2]), w_x, flat, scratch[2:])
    xp.add(gates, b_x, out=gates)
    step = GATES.ready(xp, h.shape[0], w_h, b_h, scratch[-1])
    product = None if step else scratch[1]  # of a step, if it does not make gates of it
    step = step or _product_step(xp, w_h, b_h, scratch)
    h = xp.ascontiguousarray(h)
    if (loop := usable(loop, xp, gates.dtype)) is not None:
        cell = _compiled_cell(loop, (gates, h), (inner, y), product)
    else:
        cell = functools.partial(_cell, xp, (gates, h), (inner, y), (product, scratch[0]))
    for t in range(x.shape[0]):
        step(h, gates[t], inner[t])
        cell(t)
        h = y[t]
    h_n[...] = h


def _compiled_cell(loop: Loop, given: Any, made: Any, product: Any) -> Callable[[int], None]:
    """Return what makes a state: of products too, if they are not in the gates yet."""
    (gates, h), (inner, y) = given, made
    r, z, n = _thirds(gates)
    if product is None:
        return stepped(loop, gru_cell, (r, z, n, inner), (h, y), (n, y))
    now = r, z, n, *(still(p, len(gates)) for p in _thirds(product))
    return stepped(loop, gru_gates, now, (h, y), (r, z, n, inner, y))


def _cell(xp: Any, given: Any, made: Any, scratch: Any, t: int) -> None:
    """Write the state of step t."""
    (gates, first), (inner, y), (product, state) = given, made, scratch
    if product is not None:
        _finish_gates(xp, product, gates[t], inner[t])
    r, z, n = _thirds(gates[t])
    h = y[t - 1] if t else first
    xp.multiply(r, inner[t], out=state)
    xp.add(n, state, out=n)
    xp.tanh(n, out=n)
    xp.subtract(h, n, out=state)
    xp.multiply(z, state, out=state)
    xp.add(n, state, out=y[t])


def _finish_gates(xp: Any, product: Any, gates: Any, inner: Any) -> None:
    """Make gates r and z of the products of a step, in place, and write inner."""
    both = 2 * (product.shape[1] // 3)
    r_z = gates[:, :both]
    inner[...] = product[:, both:]
    xp.add(r_z, product[:, :both], out=r_z)
    xp.multiply(r_z, 0.5, out=r_z)  # sigmoid(x) = (1 + tanh(x / 2)) / 2
    xp.tanh(r_z, out=r_z)
    xp.multiply(r_z, 0.5, out=r_z)
    xp.add(r_z, 0.5, out=r_z)


def _product_step(xp: Any, w_h: Any, b_h: Any, scratch: Any) -> Callable[..., None]:
    """Return the function that writes the products of a step into memory of their own."""
    product = scratch[1]
    multiply = NARROW_GATES.ready(xp, product.shape[0], w_h, b_h, scratch[-1])
    if multiply is None:
        multiply = functools.partial(_product, xp, *plain_factors(w_h), b_h)
    return lambda h, *_: multiply(h, product)


def _product(xp: Any, w_h: Any, rounded: Any, b_h: Any, h: Any, product: Any) -> None:
    thin_product(xp, rounded(h), w_h, product)
    xp.add(product, b_h, out=product)


def gru_backward_scratch(h0: Spec, w_h: Spec) -> list[Spec]:
    """Return the specs of two states, and of bytes."""
    return [h0, h0, *back_scratch(h0, w_h)]


def gru_backward(xp: Any, ins: Any, outs: Any, scratch: Any, loop: Loop | None = None) -> None:
    """Write the gradients of both sides of the gates before their functions, and dh0.

    ``ins`` are the cotangents of y and h_n, then h0, w_h, y, gates, inner. The sides are that
    of the input, which may be written over the gates, and that of the state.
    """
    (dy, dh_n, h0, w_h, y, gates, inner), (outer, recurrent, dh) = ins, outs
    dh[...] = dh_n
    states, term, steps = scratch[:2], scratch[0], dy.shape[0]
    step = back_step(xp, dh.shape[0], w_h, scratch[-1])
    if (loop := usable(loop, xp, gates.dtype)) is not None:
        now = *_thirds(gates), inner, still(dh, steps), still(term, steps), dy
        made = *_thirds(outer), *_thirds(recurrent), still(dh, steps)
        back = stepped(loop, gru_back, now, (h0, y), made)
        term[...] = 0
    else:
        given = (gates, inner, h0, y), (dh, outer, recurrent), dy
        back = functools.partial(_cell_back, xp, *given, states)
    for t in range(steps - 1, -1, -1):
        back(t)
        step(recurrent[t], term)
    if steps:
        xp.add(dh, term, out=dh)


def _cell_back(xp: Any, given: Any, gradients: Any, dy: Any, states: Any, t: int) -> None:
    """Turn dh of step t, in two parts but for the last, into the gradients of its gates."""
    (gates, inner, h0, y), (dh, outer, recurrent) = given, gradients
    if t < len(dy) - 1:
        xp.add(dh, states[0], out=dh)
    xp.add(dh, dy[t], out=dh)
    before = y[t - 1] if t else h0
    _step_back(xp, (gates[t], inner[t], before), (dh, outer[t], recurrent[t]), states)


def _thirds(gates: Any) -> list[Any]:
    """View (..., 3 H) as three (..., H)."""
    width = gates.shape[-1] // 3
    return [gates[..., i * width : (i + 1) * width] for i in range(3)]


def _step_back(xp: Any, given: Any, gradients: Any, states: Any) -> None:
    """Turn dh of a step into the gradients of its gates, and leave dh z in ``dh``.

    Every gate is read for the last time before its gradient is written.
    """
    (gates, inner, before), (dh, outer, recurrent) = given, gradients
    r, z, n = _thirds(gates)
    dr, dz, dn = _thirds(outer)
    hr, hz, hn = _thirds(recurrent)
    slope, term = states
    xp.subtract(1, z, out=slope)
    xp.multiply(slope, dh, out=slope)
    xp.multiply(slope, z, out=hz)
    xp.subtract(before, n, out=term)
    xp.multiply(hz, term, out=hz)
    xp.subtract(1, n, out=term)
    xp.multiply(slope, term, out=slope)
    xp.add(1, n, out=term)
    xp.multiply(slope, term, out=dn)
    xp.multiply(dh, z, out=dh)
    dz[...] = hz
    xp.multiply(dn, r, out=hn)
    xp.subtract(1, r, out=term)
    xp.multiply(term, r, out=term)
    xp.multiply(term, inner, out=term)
    xp.multiply(term, dn, out=hr)
    dr[...] = hr
