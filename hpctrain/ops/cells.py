"""What cells of recurrences do element by element in a step, as formulas to be compiled.

A kernel that is given a ``loop`` (column ``loops`` of a row) makes of each formula one loop
over memory, where NumPy takes one for each operation. Measured with 35 steps of 32 x 512
states, ms of a whole kernel with its products, least of 15 alternating calls:

- in float32: LSTM 41.7 to 40.7 forward, 28.7 to 22.9 backward; GRU 34.1 to 33.0, 24.2 to 20.7;
- in bfloat16: LSTM 14.7 to 13.1, 13.7 to 8.0; GRU 15.5 to 11.0, 11.9 to 8.0.

Arrays of formulas are (T, B, H). Values of a step are computed from others of the same step,
and from some of the step before.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd.element import Element, sigmoid, tanh

__all__ = [
    "Loop",
    "gru_back",
    "gru_cell",
    "gru_gates",
    "lstm_back",
    "lstm_cell",
    "stepped",
    "still",
    "usable",
]

Formula = Callable[..., Sequence[Element]]
Loop = Callable[[Formula, Sequence[Any], Sequence[Any]], Callable[[int], None]]


def usable(loop: Loop | None, xp: Any, dtype: Any) -> Loop | None:
    """Return the compiler if it can compile loops over arrays of this kind."""
    return loop if xp is np and dtype.char in "fd" else None


def still(array: Any, steps: int) -> Any:
    """View an array (B, H), or (H,) for all B, as if each of the steps had its own."""
    return np.broadcast_to(array, (steps, *array.shape))


def stepped(
    loop: Loop, formula: Formula, now: Sequence[Any], before: tuple[Any, Any], outs: Any
) -> Callable[[int], None]:
    """Return the function that carries out a formula for step t.

    Parameters
    ----------
    loop : callable
        See `hpctrain.graph.inner.inner_loop`.
    formula : callable
        Takes an element of each array of ``now``, then one of the step before.
    now : sequence of array, shape (T, B, H)
    before : (first, array)
        What is before step 0, shape (B, H), and of all steps.
    outs : sequence of array, shape (T, B, H)
    """
    first, array = before
    start = loop(formula, [*(a[:1] for a in now), first[None]], [o[:1] for o in outs])
    after = loop(formula, [*(a[1:] for a in now), array[:-1]], [o[1:] for o in outs])
    return functools.partial(_at, start, after)


def _at(start: Callable[[int], None], after: Callable[[int], None], t: int) -> None:
    if t:
        after(t - 1)
    else:
        start(0)


def lstm_cell(i: Element, f: Element, g: Element, o: Element, c: Element) -> list[Element]:
    """Return the cell and the state from the gates and the cell before."""
    cell = f * c + i * g
    return [cell, o * tanh(cell)]


def lstm_back(  # noqa: PLR0913 (what a gradient depends on)
    i: Element, f: Element, g: Element, o: Element, cell: Element, dh: Element, dy: Element,
    dc: Element, c: Element,
) -> list[Element]:  # fmt: skip
    """Return the gradients of the gates before their functions, and of the cell before."""
    dh = dh + dy
    a = tanh(cell)
    dc = dc + (1 - a * a) * o * dh
    gates = [(1 - i) * i * g * dc, (1 - f) * f * c * dc, (1 - g) * i * (1 + g) * dc]
    return [*gates, (1 - o) * o * a * dh, dc * f]


def gru_cell(r: Element, z: Element, n: Element, inner: Element, h: Element) -> list[Element]:
    """Return n after its function, and the state, from that before."""
    n = tanh(n + r * inner)
    return [n, n + z * (h - n)]


def gru_gates(  # noqa: PLR0913 (what a cell depends on)
    r: Element, z: Element, n: Element, p: Element, q: Element, inner: Element, h: Element
) -> list[Element]:
    """Return r, z, n after their functions, inner, and the state; p, q, inner are products."""
    r, z = sigmoid(r + p), sigmoid(z + q)
    return [r, z, *(made := gru_cell(r, z, n, inner, h))[:1], inner, made[1]]


def gru_back(  # noqa: PLR0913 (what a gradient depends on)
    r: Element, z: Element, n: Element, inner: Element, dh: Element, term: Element,
    dy: Element, h: Element,
) -> list[Element]:  # fmt: skip
    """Return the gradients of both sides of the gates, and of the state but for products.

    ``term`` is the product that the step behind has left of it.
    """
    dh = dh + term + dy
    slope = (1 - z) * dh
    dz = slope * z * (h - n)
    dn = slope * (1 - n) * (1 + n)
    dr = (1 - r) * r * inner * dn
    return [dr, dz, dn, dr, dz, dn * r, dh * z]
