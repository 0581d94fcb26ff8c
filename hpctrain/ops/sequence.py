"""Sequences of unequal length in one array: masks, last steps, reversal.

``lengths`` says how many steps of each sequence are real; the others are padding behind them.
"""

from typing import Any

import numpy as np

from hpctrain.autograd import Tensor
from hpctrain.errors import ShapeError
from hpctrain.ops.compare import greater, less, less_equal, logical_and, where
from hpctrain.ops.elementwise import cast
from hpctrain.ops.gather import take
from hpctrain.ops.movement import flip, reshape
from hpctrain.ops.rules import tensors

__all__ = ["sequence_last", "sequence_mask", "sequence_reverse", "valid_steps"]


def _given(where_: str, x: Any, lengths: Any, axis: int) -> tuple[Any, Any, int]:
    """Return x, whole-number lengths and the number of steps."""
    (x,) = tensors(x)
    if x.ndim < 2 or axis not in (0, 1):
        raise ShapeError(
            f"{where_}: got {x.spec} and time axis {axis}, needed two axes or more, the first "
            "of which are time and batch: axis 0 or 1"
        )
    if lengths is not None:
        (lengths,) = tensors(lengths)
        if lengths.shape != (x.shape[1 - axis],):
            raise ShapeError(
                f"{where_}: got lengths {lengths.spec} for {x.spec}, needed one for each of "
                f"{x.shape[1 - axis]} sequences"
            )
        lengths = lengths if lengths.dtype == np.int64 else cast(lengths, "int64")
    return x, lengths, x.shape[axis]


def _count(n: int, axis: int, like: Any) -> Any:
    """Return 0 to n - 1 along ``axis`` of two."""
    ids = np.arange(n).reshape((n, 1) if axis == 0 else (1, n))
    return Tensor(ids, device=like.device)


def valid_steps(lengths: Any, steps: int, axis: int = 0) -> Any:
    """Return which steps are real, as bool.

    Parameters
    ----------
    lengths : array_like of whole numbers, shape (N,)
    steps : int
    axis : int
        Of time: 0 for the result (steps, N), 1 for (N, steps).
    """
    (lengths,) = tensors(lengths)
    return less(
        _count(steps, axis, lengths), reshape(lengths, (1, -1) if axis == 0 else (-1, 1))
    )


def sequence_mask(x: Any, lengths: Any, axis: int = 0, value: float = 0) -> Any:
    """Return ``x`` with ``value`` in the place of padding.

    Parameters
    ----------
    x : array_like, shape (T, N, ...), or (N, T, ...) with ``axis=1``
    lengths : array_like, shape (N,), or None
        Steps of each sequence that are real; all of them for None.
    axis : int
        Of time, 0 or 1.
    value : float

    Notes
    -----
    Padding gets no gradient, whatever it holds: NaN in it does no harm.
    """
    x, lengths, steps = _given("sequence_mask", x, lengths, axis)
    if lengths is None:
        return x
    real = valid_steps(lengths, steps, axis)
    fill = Tensor(np.asarray(value, x.dtype), device=x.device)
    return where(reshape(real, (*real.shape, *[1] * (x.ndim - 2))), x, fill)


def sequence_last(x: Any, lengths: Any = None, axis: int = 0) -> Any:
    """Return the last real step of each sequence, shape (N, ...).

    Arguments as for `sequence_mask`; lengths from 1 to T.
    """
    x, lengths, steps = _given("sequence_last", x, lengths, axis)
    if lengths is None:
        return x[steps - 1] if axis == 0 else x[:, steps - 1]
    count = x.shape[1 - axis]
    rows: Any = Tensor(np.arange(count), device=x.device)
    ids = (lengths - 1) * count + rows if axis == 0 else rows * steps + (lengths - 1)
    # A length of 0 or above T must be out of range in every sequence, not in the outer ones.
    fits = logical_and(greater(lengths, 0), less_equal(lengths, steps))
    ids = where(fits, ids, Tensor(np.array(-1), device=x.device))
    return take(reshape(x, (steps * count, *x.shape[2:])), ids, 0)


def sequence_reverse(x: Any, lengths: Any = None, axis: int = 0) -> Any:
    """Return ``x`` with the real steps of each sequence in reverse order, padding as it is.

    Arguments as for `sequence_mask`.
    """
    x, lengths, steps = _given("sequence_reverse", x, lengths, axis)
    if lengths is None:
        return flip(x, axis)
    count = x.shape[1 - axis]
    t, n = _count(steps, axis, x), _count(count, 1 - axis, x)
    ends = reshape(lengths, (1, -1) if axis == 0 else (-1, 1))
    source = where(less(t, ends), ends - 1 - t, t)
    ids = source * count + n if axis == 0 else n * steps + source
    flat = take(reshape(x, (steps * count, *x.shape[2:])), reshape(ids, (-1,)), 0)
    return reshape(flat, x.shape)
