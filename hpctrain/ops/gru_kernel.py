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


def gru_forward(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    """Write y, h_n, gates (after their functions) and inner, the n part of the products."""
    (x, h, w_x, w_h, b_x, b_h), (y, h_n, gates, inner) = ins, outs
    state = scratch[0]
    flat = gates.reshape(x.shape[0] * x.shape[1], w_x.shape[0])
    rows_by_weight(xp, x.reshape(flat.shape[0], x.shape[2]), w_x, flat, scratch[2:])
    step = GATES.ready(xp, h.shape[0], w_h, b_h, scratch[-1])
    if step is None:
        step = _gate_step(xp, w_h, b_h, scratch)
    h = xp.ascontiguousarray(h)
    for t in range(x.shape[0]):
        r, z, n = _thirds(gates[t])
        xp.add(gates[t], b_x, out=gates[t])
        step(h, gates[t], inner[t])
        xp.multiply(r, inner[t], out=state)
        xp.add(n, state, out=n)
        xp.tanh(n, out=n)
        xp.subtract(h, n, out=state)
        xp.multiply(z, state, out=state)
        h = xp.add(n, state, out=y[t])
    h_n[...] = h


def _gate_step(xp: Any, w_h: Any, b_h: Any, scratch: Any) -> Callable[..., None]:
    """Return the function that makes gates r and z, in place, and writes inner."""
    product = scratch[1]
    both = 2 * (product.shape[1] // 3)
    multiply = NARROW_GATES.ready(xp, product.shape[0], w_h, b_h, scratch[-1])
    if multiply is None:
        multiply = functools.partial(_product, xp, *plain_factors(w_h), b_h)

    def step(h: Any, gates: Any, inner: Any) -> None:
        r_z = gates[:, :both]
        multiply(h, product)
        inner[...] = product[:, both:]
        xp.add(r_z, product[:, :both], out=r_z)
        xp.multiply(r_z, 0.5, out=r_z)  # sigmoid(x) = (1 + tanh(x / 2)) / 2
        xp.tanh(r_z, out=r_z)
        xp.multiply(r_z, 0.5, out=r_z)
        xp.add(r_z, 0.5, out=r_z)

    return step


def _product(xp: Any, w_h: Any, rounded: Any, b_h: Any, h: Any, product: Any) -> None:
    thin_product(xp, rounded(h), w_h, product)
    xp.add(product, b_h, out=product)


def gru_backward_scratch(h0: Spec, w_h: Spec) -> list[Spec]:
    """Return the specs of two states, and of bytes."""
    return [h0, h0, *back_scratch(h0, w_h)]


def gru_backward(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    """Write the gradients of both sides of the gates before their functions, and dh0.

    ``ins`` are the cotangents of y and h_n, then h0, w_h, y, gates, inner. The sides are that
    of the input, which may be written over the gates, and that of the state.
    """
    (dy, dh_n, h0, w_h, y, gates, inner), (outer, recurrent, dh) = ins, outs
    dh[...] = dh_n
    states = scratch[:2]
    step = back_step(xp, dh.shape[0], w_h, scratch[-1])
    for t in range(dy.shape[0] - 1, -1, -1):
        xp.add(dh, dy[t], out=dh)
        before = y[t - 1] if t else h0
        _step_back(xp, (gates[t], inner[t], before), (dh, outer[t], recurrent[t]), states)
        step(recurrent[t], states[0])
        xp.add(dh, states[0], out=dh)


def _thirds(gates: Any) -> list[Any]:
    """View (B, 3 H) as three (B, H)."""
    width = gates.shape[1] // 3
    return [gates[:, i * width : (i + 1) * width] for i in range(3)]


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
