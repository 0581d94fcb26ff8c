"""Kernels of the gated recurrent unit, in the form whose reset gate acts on the product.

Dimension key: T steps, B sequences, I inputs, H states. Gates lie side by side in the order
r, z, n: h = (1 - z) n + z h_before, n = tanh(x w_n + r (h_before u_n + b_n)).
"""

from typing import Any

from hpctrain.autograd import Spec
from hpctrain.ops.lstm_kernel import thin_product

__all__ = ["gru_backward", "gru_backward_scratch", "gru_forward", "gru_scratch"]


def gru_scratch(x: Spec, h0: Spec) -> list[Spec]:
    """Return the specs of the recurrent products and of a state, of one step."""
    batch, width = h0.shape
    return [h0.with_shape((batch, 3 * width)), h0]


def gru_forward(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    """Write y, h_n, gates (after their functions) and inner, the n part of the products."""
    (x, h, w_x, w_h, b_x, b_h), (y, h_n, gates, inner) = ins, outs
    product, state = scratch
    rows, width = x.shape[0] * x.shape[1], h.shape[1]
    flat = gates.reshape(rows, 3 * width)
    xp.matmul(x.reshape(rows, x.shape[2]), w_x.T, out=flat)
    xp.add(flat, b_x, out=flat)
    for t in range(x.shape[0]):
        r, z, n = _thirds(gates[t])
        r_z = gates[t][:, : 2 * width]
        thin_product(xp, h, w_h, product)
        xp.add(product, b_h, out=product)
        xp.add(r_z, product[:, : 2 * width], out=r_z)
        xp.multiply(r_z, 0.5, out=r_z)  # sigmoid(x) = (1 + tanh(x / 2)) / 2
        xp.tanh(r_z, out=r_z)
        xp.multiply(r_z, 0.5, out=r_z)
        xp.add(r_z, 0.5, out=r_z)
        inner[t] = product[:, 2 * width :]
        xp.multiply(r, inner[t], out=state)
        xp.add(n, state, out=n)
        xp.tanh(n, out=n)
        xp.subtract(h, n, out=state)
        xp.multiply(z, state, out=state)
        h = xp.add(n, state, out=y[t])
    h_n[...] = h


def gru_backward_scratch(x: Spec, h0: Spec) -> list[Spec]:
    """Return the specs of gate gradients of both sides, former states, ones, two states."""
    steps, (batch, width) = x.shape[0], h0.shape
    gates = (steps, batch, 3 * width)
    sizes = [gates, gates, (steps, batch, width), (1, steps * batch)]
    return [*[h0.with_shape(s) for s in sizes], h0, h0]


def gru_backward(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    """Write dx, dh0, dw_x, dw_h, db_x and db_h.

    ``ins`` are the cotangents of y and h_n, then x, h0, w_x, w_h, then y, gates, inner.
    """
    dy, dh_n, x, h0, w_x, w_h, y, gates, inner = ins
    dx, dh, dw_x, dw_h, db_x, db_h = outs
    outer, recurrent, former, ones, *states = scratch
    dh[...] = dh_n
    for t in range(x.shape[0] - 1, -1, -1):
        xp.add(dh, dy[t], out=dh)
        before = y[t - 1] if t else h0
        _step_back(xp, (gates[t], inner[t], before), (dh, outer[t], recurrent[t]), states)
        xp.matmul(recurrent[t], w_h, out=states[0])
        xp.add(dh, states[0], out=dh)
    if x.shape[0]:
        former[0] = h0
        former[1:] = y[:-1]
    rows, width = x.shape[0] * x.shape[1], w_x.shape[0]
    ones[...] = 1
    to_x, to_h = outer.reshape(rows, width), recurrent.reshape(rows, width)
    xp.matmul(to_x, w_x, out=dx.reshape(rows, x.shape[2]))
    xp.matmul(to_x.T, x.reshape(rows, x.shape[2]), out=dw_x)
    xp.matmul(to_h.T, former.reshape(rows, w_h.shape[1]), out=dw_h)
    xp.matmul(ones, to_x, out=db_x[None])
    xp.matmul(ones, to_h, out=db_h[None])


def _thirds(gates: Any) -> list[Any]:
    """View (B, 3 H) as three (B, H)."""
    width = gates.shape[1] // 3
    return [gates[:, i * width : (i + 1) * width] for i in range(3)]


def _step_back(xp: Any, given: Any, gradients: Any, states: Any) -> None:
    """Turn dh of a step into the gradients of its gates, and leave dh z in ``dh``."""
    (gates, inner, before), (dh, outer, recurrent) = given, gradients
    r, z, n = _thirds(gates)
    dr, dz, dn = _thirds(outer)
    width = r.shape[1]
    slope, term = states
    xp.subtract(1, z, out=slope)
    xp.multiply(slope, z, out=term)
    xp.multiply(term, dh, out=term)
    xp.subtract(before, n, out=dz)
    xp.multiply(dz, term, out=dz)
    xp.multiply(slope, dh, out=slope)
    xp.multiply(n, n, out=term)
    xp.subtract(1, term, out=term)
    xp.multiply(slope, term, out=dn)
    xp.subtract(1, r, out=slope)
    xp.multiply(slope, r, out=slope)
    xp.multiply(slope, inner, out=slope)
    xp.multiply(slope, dn, out=dr)
    recurrent[:, : 2 * width] = outer[:, : 2 * width]
    xp.multiply(dn, r, out=recurrent[:, 2 * width :])
    xp.multiply(dh, z, out=dh)
