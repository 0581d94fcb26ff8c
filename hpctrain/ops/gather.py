"""Elements chosen by integer arrays, and the sums that are their gradients."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.ops.blocks import clear
from hpctrain.ops.rules import axis_of, check_ids, need, tensors

__all__ = ["embedding", "one_hot", "pick", "take"]

_LONG = 16  # rows of one index, from which one call for them costs less than their share


def _whole(where: str, ids: Spec) -> None:
    need(ids.dtype.kind in "iu", where, [ids], "whole-number indices; use cast")


# Take


def _take_infer(specs: Sequence[Spec], axis: int) -> list[Spec]:
    x, ids = specs
    _whole("take", ids)
    need(0 <= axis < x.ndim, "take", specs, f"an axis {axis}")
    return [x.with_shape(x.shape[:axis] + ids.shape + x.shape[axis + 1 :])]


def _take(xp: Any, ins: Any, outs: Any, scratch: Any, axis: int) -> None:
    x, ids = ins
    if xp is not np:
        xp.take(x, ids, axis=axis, out=outs[0])
        return
    check_ids(xp, "take", ids, x.shape[axis])
    # The indices are in range by now; mode "raise" would go through a copy of the result.
    np.take(x, ids, axis=axis, out=outs[0], mode="clip")


def _take_vjp(inputs: Any, outputs: Any, given: Any, axis: int) -> list[Any]:
    x, ids = inputs
    return [
        lambda: apply("take_grad", given[0], ids, axis=axis, length=x.shape[axis]),
        None,
    ]


def _take_grad_infer(specs: Sequence[Spec], axis: int, length: int) -> list[Spec]:
    dy, ids = specs
    _whole("take_grad", ids)
    stop = axis + ids.ndim
    need(dy.shape[axis:stop] == ids.shape, "take_grad", specs, "a cotangent of take")
    return [dy.with_shape((*dy.shape[:axis], length, *dy.shape[stop:]))]


def _take_grad_scratch(specs: Sequence[Spec], axis: int, length: int) -> list[Spec]:
    return [specs[0], specs[0]]


def add_rows(xp: Any, ins: Any, outs: Any, scratch: Any, axis: int, length: int) -> None:
    """Add up the rows of equal index, each sum in the order of the rows."""
    dy, ids = ins[0], ins[1].reshape(-1)
    out = outs[0].reshape(math.prod(outs[0].shape[:axis]), length, -1)
    clear(xp, outs[0])
    if not dy.size:
        return
    dy = dy.reshape(len(out), ids.size, -1)
    if xp is not np:
        for lead, rows in zip(out, dy, strict=True):
            xp.add.at(lead, ids, rows)
        return
    check_ids(xp, "take_grad", ids, length)
    runs = _runs(ids)
    spare, sums = (s.reshape(dy.shape) for s in scratch)
    for lead, rows, terms, totals in zip(out, dy, spare, sums, strict=True):
        _add_runs(rows, runs, terms, totals)
        lead[ids[runs[0][runs[1]]]] = totals[: runs[1].size]


def _runs(ids: Any) -> tuple[Any, Any, Any]:
    """Sort by index; return the order, where each run of equal ones starts, and its length.

    Long runs come first.
    """
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    counts = np.diff(starts, append=ids.size)
    longest = np.argsort(-counts, kind="stable")
    return order, starts[longest], counts[longest]


def _add_runs(rows: Any, runs: Any, terms: Any, totals: Any) -> None:
    """Write the sum of the rows of each run.

    The first rows of all runs are added to the second, and so on; a long run is summed by
    itself. `numpy.add.reduceat` takes five times as long (1120 rows of 512, most of them
    single).
    """
    order, starts, counts = runs
    long = int(np.count_nonzero(counts > _LONG))
    for total, start, count in zip(totals, starts[:long], counts[:long], strict=False):
        part = terms[:count]
        np.take(rows, order[start : start + count], axis=0, out=part, mode="clip")
        np.add.reduce(part, axis=0, out=total)
    single = totals[long : starts.size]
    np.take(rows, order[starts[long:]], axis=0, out=single, mode="clip")
    for k in range(1, _LONG):
        more = int(np.count_nonzero(counts > k))
        if more <= long:
            break
        part, total = terms[long:more], totals[long:more]
        np.take(rows, order[starts[long:more] + k], axis=0, out=part, mode="clip")
        np.add(total, part, out=total)


def _take_grad_vjp(i: Any, o: Any, g: Any, axis: int, length: int) -> list[Any]:
    return [lambda: apply("take", g[0], i[1], axis=axis), None]


register(
    Primitive(
        "take", "gather", _take_infer, _take, _take_vjp,
        looks_up=lambda axis: None if axis else 1,
    )
)  # fmt: skip
register(
    Primitive(
        "take_grad", "gather", _take_grad_infer, add_rows, _take_grad_vjp,
        scratch=_take_grad_scratch, rows=lambda axis, length: None if axis else 1,
    )
)  # fmt: skip


def take(x: Any, ids: Any, axis: int = 0) -> Any:
    """Return the elements of ``x`` at ``ids`` along ``axis``.

    Parameters
    ----------
    x : array_like
    ids : array_like of whole numbers, any shape
        From 0 to the length of the axis less 1.
    axis : int

    Returns
    -------
    Tensor
        The shape of ``ids`` stands in the place of the axis.

    Raises
    ------
    ShapeError
        If an index is out of range (on CPUs; a GPU wraps it round).
    """
    (x,), (ids,) = tensors(x), tensors(ids)
    return apply("take", x, ids, axis=axis_of("take", axis, x.ndim))


def embedding(ids: Any, weight: Any) -> Any:
    """Return the rows of ``weight``, shape (rows, width), at ``ids``: (*ids.shape, width).

    See `take`. The gradient is dense, of the shape of ``weight``.
    """
    return take(weight, ids, 0)


# Pick: one element of each row


def _pick_infer(specs: Sequence[Spec]) -> list[Spec]:
    x, ids = specs
    _whole("pick", ids)
    need(x.ndim > 0 and x.shape[:-1] == ids.shape, "pick", specs, "one index for each row")
    return [x.with_shape(ids.shape)]


def _pick(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    x, ids = ins
    check_ids(xp, "pick", ids, x.shape[-1])
    outs[0][...] = xp.take_along_axis(x, ids[..., None], -1)[..., 0]


def _pick_vjp(inputs: Any, outputs: Any, given: Any) -> list[Any]:
    x, ids = inputs
    return [lambda: apply("pick_grad", given[0], ids, length=x.shape[-1]), None]


def _pick_grad(xp: Any, ins: Any, outs: Any, scratch: Any, length: int) -> None:
    _set(xp, outs[0].reshape(-1, length), ins[1], ins[0].reshape(-1))


def _set(xp: Any, rows: Any, ids: Any, value: Any) -> None:
    """Write ``value`` at one place in each row, and 0 elsewhere."""
    clear(xp, rows)
    rows[xp.arange(len(rows)), ids.reshape(-1)] = value


register(Primitive("pick", "gather", _pick_infer, _pick, _pick_vjp))
register(
    Primitive(
        "pick_grad", "gather",
        lambda specs, length: [specs[0].with_shape((*specs[0].shape, length))], _pick_grad,
        lambda i, o, g, length: [lambda: apply("pick", g[0], i[1]), None],
    )
)  # fmt: skip


def pick(x: Any, ids: Any) -> Any:
    """Return ``x[..., ids[...]]``: one element of each row along the last axis.

    Parameters
    ----------
    x : array_like, shape (..., C)
    ids : array_like of whole numbers from 0 to C - 1, shape (...)

    Returns
    -------
    Tensor, shape (...)
    """
    (x,), (ids,) = tensors(x), tensors(ids)
    return apply("pick", x, ids)


# One-hot


def _one_hot_infer(specs: Sequence[Spec], depth: int, dtype: str) -> list[Spec]:
    _whole("one_hot", specs[0])
    return [Spec((*specs[0].shape, depth), np.dtype(dtype))]


def _one_hot(xp: Any, ins: Any, outs: Any, scratch: Any, depth: int, dtype: str) -> None:
    check_ids(xp, "one_hot", ins[0], depth)
    _set(xp, outs[0].reshape(-1, depth), ins[0], 1)


register(Primitive("one_hot", "gather", _one_hot_infer, _one_hot))


def one_hot(ids: Any, depth: int, dtype: Any = np.float32) -> Any:
    """Return 1 at ``ids`` along a new last axis of length ``depth``, and 0 elsewhere."""
    return apply("one_hot", *tensors(ids), depth=int(depth), dtype=np.dtype(dtype).name)
