"""Rows of a table and classes of a classifier of which each rank of a team has some.

A table of embeddings and the logits of a classifier are cut by the number of token or class.
Nobody ever has the whole of them: of a row of logits the ranks tell each other three numbers.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply, register
from hpctrain.ops.blocks import BLOCK, rows_per_block, spans
from hpctrain.ops.cut import Cut, Team
from hpctrain.ops.gather import add_rows
from hpctrain.ops.rules import check_ids, floating, need

__all__ = ["take_part", "team_argmax", "team_cross_entropy"]


# Take


def take_part(table: Any, ids: Any, start: int, length: int) -> Any:
    """Return the rows at ``ids`` of a table of which ``table`` is a part, zeros for all others.

    Parameters
    ----------
    table : Tensor, shape (rows, ...)
        Rows ``start`` and on of one of ``length`` rows.
    ids : Tensor of whole numbers

    Returns
    -------
    Tensor, shape (*ids.shape, ...)
        A term: the sum over all parts is what `hpctrain.ops.take` gives.
    """
    return apply("take_part", table, ids, start=int(start), length=int(length))


def _take_infer(specs: Sequence[Spec], *, start: int, length: int) -> list[Spec]:
    table, ids = specs
    fits = ids.dtype.kind in "iu" and table.ndim > 0 and start + table.shape[0] <= length
    need(fits, "take_part", specs, f"whole numbers, and rows {start} and on of {length}")
    return [table.with_shape((*ids.shape, *table.shape[1:]))]


def _inside(xp: Any, ids: Any, start: int, rows: int) -> tuple[Any, Any]:
    """Return numbers of rows counted from ``start``, and which of them are here."""
    here = (ids >= start) & (ids < start + rows)
    return xp.where(here, ids.astype(np.int64) - start, 0), here


def _take(xp: Any, ins: Any, outs: Any, scratch: Any, *, start: int, length: int) -> None:
    table, ids = ins
    check_ids(xp, "take_part", ids, length)
    near, here = _inside(xp, ids, start, len(table))
    if xp is np:
        np.take(table, near, axis=0, out=outs[0], mode="clip")
    else:
        xp.take(table, near, axis=0, out=outs[0])
    outs[0][~here] = 0


def _take_vjp(i: Any, o: Any, g: Any, *, start: int, length: int) -> list[Any]:
    table, ids = i
    attrs = {"start": start, "rows": table.shape[0]}
    return [lambda: apply("take_part_grad", g[0], ids, **attrs), None]


def _take_grad_infer(specs: Sequence[Spec], *, start: int, rows: int) -> list[Spec]:
    dy, ids = specs
    fits = dy.shape[: ids.ndim] == ids.shape
    need(fits, "take_part_grad", specs, "a cotangent of take_part")
    return [dy.with_shape((rows, *dy.shape[ids.ndim :]))]


def _take_grad_scratch(specs: Sequence[Spec], *, start: int, rows: int) -> list[Spec]:
    dy, ids = specs
    one = dy.size // max(1, ids.size)
    return [dy, dy, dy.with_shape(((rows + 1) * one,))]


def _pull(xp: Any, ins: Any, outs: Any, scratch: Any, *, start: int, rows: int) -> None:
    """Add up the rows of equal number; what belongs to other ranks goes into one more row."""
    dy, ids = ins
    near, here = _inside(xp, ids, start, rows)
    near = xp.where(here, near, rows)
    whole = scratch[2].reshape(rows + 1, *outs[0].shape[1:])
    add_rows(xp, [dy, near], [whole], scratch[:2], 0, rows + 1)
    outs[0][...] = whole[:rows]


register(Primitive("take_part", "gather", _take_infer, _take, _take_vjp))
register(Primitive("take_part_grad", "gather", _take_grad_infer, _pull, None,
                   scratch=_take_grad_scratch))  # fmt: skip


# Cross entropy


def team_cross_entropy(logits: Any, labels: Any, team: Team, length: int) -> Any:
    """Return the cross entropy of softmax and labels, of logits cut by the class.

    Parameters
    ----------
    logits : Tensor, shape (..., C / ranks), floating
        This rank's classes, as `hpctrain.ops.cut.Cut` gives them.
    labels : Tensor of whole numbers, shape (...)
        The same on all ranks.
    team : Team
    length : int
        C.

    Returns
    -------
    Tensor, shape (...)
        The same bits on all ranks.

    Notes
    -----
    One message of three numbers a row to each rank forward, none backward.
    """
    return apply("team_cross_entropy", logits, labels, team=team, length=int(length))[0]


def _first(team: Team, length: int) -> int:
    return Cut(0).span(length, team)[0]


def _xent_infer(specs: Sequence[Spec], *, team: Team, length: int) -> list[Spec]:
    logits, labels = specs
    floating("team_cross_entropy", logits)
    fits = logits.ndim and labels.shape == logits.shape[:-1] and labels.dtype.kind in "iu"
    fits = fits and logits.shape[-1] == Cut(0).length(length, team)
    need(bool(fits), "team_cross_entropy", specs, f"a part of {length} classes, and labels")
    return [logits.with_shape(labels.shape)] * 3


def _rows(specs: Sequence[Spec], **_: Any) -> list[Spec]:
    """Return room for the exponentials of some rows, and for what the ranks tell."""
    width, rows = specs[0].shape[-1], specs[1].size
    block = min(rows_per_block(width, 4 * BLOCK), rows)
    return [specs[0].with_shape((block * width,))]


def _xent_scratch(specs: Sequence[Spec], *, team: Team, length: int) -> list[Spec]:
    told = specs[0].with_shape((team.size, 3, specs[1].size))
    return [*_rows(specs), told]


def _blocks(xp: Any, rows: int, width: int) -> Iterator[slice]:
    return spans(rows, rows_per_block(width, 4 * BLOCK) if xp is np else max(rows, 1))


def _xent(xp: Any, ins: Any, outs: Any, scratch: Any, *, team: Team, length: int) -> None:
    """Write the loss, and for each row the largest logit and the sum of exponentials."""
    logits, labels = ins
    check_ids(xp, "team_cross_entropy", labels, length)
    width, told = logits.shape[-1], scratch[1]
    x, label = logits.reshape(-1, width), labels.reshape(-1)
    peak, total, chosen = told[team.rank]
    for rows in _blocks(xp, len(x), width):
        e = scratch[0][: x[rows].size].reshape(x[rows].shape)
        xp.max(x[rows], axis=1, out=peak[rows])
        xp.subtract(x[rows], peak[rows, None], out=e)
        xp.exp(e, out=e)
        xp.add.reduce(e, axis=1, out=total[rows])
    near, here = _inside(xp, label, _first(team, length), width)
    chosen[...] = xp.where(here, x[xp.arange(len(x)), near], 0)
    team.swap([told[team.rank]] * team.size, told, f"team_cross_entropy {label.shape}")
    loss, top, sums = (o.reshape(-1) for o in outs)
    xp.max(told[:, 0], axis=0, out=top)
    xp.subtract(told[:, 0], top, out=told[:, 0])
    xp.exp(told[:, 0], out=told[:, 0])
    xp.multiply(told[:, 0], told[:, 1], out=told[:, 1])
    xp.add.reduce(told[:, 1], axis=0, out=sums)
    xp.log(sums, out=loss)
    xp.subtract(loss, told[:, 2].sum(axis=0) - top, out=loss)


def _xent_vjp(i: Any, o: Any, g: Any, *, team: Team, length: int) -> list[Any]:
    attrs = {"start": _first(team, length)}
    return [lambda: apply("team_cross_entropy_grad", *i, *o[1:], g[0], **attrs), None]


def _xent_grad(xp: Any, ins: Any, outs: Any, scratch: Any, *, start: int) -> None:
    """Write ``(exp(logits - peak) / total - one_hot(labels)) * dloss`` for these classes."""
    width = ins[0].shape[-1]
    x, out = ins[0].reshape(-1, width), outs[0].reshape(-1, width)
    label, peak, total, g = (v.reshape(-1) for v in ins[1:])
    for rows in _blocks(xp, len(x), width):
        xp.subtract(x[rows], peak[rows, None], out=out[rows])
        xp.exp(out[rows], out=out[rows])
        xp.multiply(out[rows], (g[rows] / total[rows])[:, None], out=out[rows])
    near, here = _inside(xp, label, start, width)
    out[xp.arange(len(x)), near] -= xp.where(here, g, 0)


register(Primitive("team_cross_entropy", "reduce", _xent_infer, _xent, _xent_vjp,
                   scratch=_xent_scratch, pure=False, any_strides=True))  # fmt: skip
register(Primitive("team_cross_entropy_grad", "normalize", lambda s, **_: [s[0]], _xent_grad,
                   inplace=((0, 0),)))  # fmt: skip


# Argmax


def team_argmax(x: Any, team: Team, length: int) -> Any:
    """Return where the maximum stands along the last axis, of which each rank has a part."""
    return apply("team_argmax", x, team=team, length=int(length))


def _best_scratch(specs: Sequence[Spec], *, team: Team, length: int) -> list[Spec]:
    rows = specs[0].size // max(1, specs[0].shape[-1])
    shape = (team.size, rows)
    return [specs[0].with_shape(shape), Spec(shape, np.dtype(np.int64))]


def _best(xp: Any, ins: Any, outs: Any, scratch: Any, *, team: Team, length: int) -> None:
    values, places = scratch
    x, out = ins[0].reshape(-1, ins[0].shape[-1]), outs[0].reshape(-1)
    xp.max(x, axis=1, out=values[team.rank])
    places[team.rank] = xp.argmax(x, axis=1) + _first(team, length)
    team.swap([values[team.rank]] * team.size, values, "team_argmax, values")
    team.swap([places[team.rank]] * team.size, places, "team_argmax, places")
    out[...] = places[xp.argmax(values, axis=0), xp.arange(len(out))]


register(Primitive("team_argmax", "reduce",
                   lambda s, **_: [Spec(s[0].shape[:-1], np.dtype(np.int64))], _best,
                   scratch=_best_scratch, pure=False, any_strides=True))  # fmt: skip
