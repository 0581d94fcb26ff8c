"""Kernels of attention: a block of queries of one head at a time, whose scores stay in cache.

Dimension key: B sequences, H heads, T queries, S keys, D width of a head.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hpctrain.autograd import Spec

__all__ = ["average", "block_scratch", "pull_back"]

SCORES = 32768  # of one block: 128 KiB in float32, with its operands well inside the L2 cache


def average(xp: Any, ins: Any, outs: Any, scratch: Any, attrs: dict[str, Any]) -> None:
    """Write y, (B, H, T, D) of any strides, and the logs of the sums, (B, H, T)."""
    (q, k, v), (y, saved) = ins, outs
    scaled, mask, space, _, row = scratch
    mask = _mask(xp, mask, attrs["causal"])
    for at, some, seen in _blocks(q, k, attrs["causal"]):
        rows = some.stop - some.start
        queries = xp.multiply(q[at][some], q.dtype.type(attrs["scale"]), out=scaled[:rows])
        scores = _scores(xp, queries, k[at][:seen], mask, space)
        top, total = row[:rows], saved[at][some]
        xp.max(scores, axis=0, out=top)
        xp.subtract(scores, top, out=scores)  # so that no exponential overflows
        xp.exp(scores, out=scores)
        xp.add.reduce(scores, axis=0, out=total)
        xp.divide(scores, total, out=scores)
        xp.matmul(scores.T, v[at][:seen], out=y[at][some])
        xp.log(total, out=total)
        xp.add(total, top, out=total)


def pull_back(xp: Any, ins: Any, outs: Any, scratch: Any, attrs: dict[str, Any]) -> None:
    """Write dq, dk and dv, of any strides, from (dy, q, k, v, saved).

    With P the probabilities: dv = P' dy, dS = P (dy v' - row sums), dq = dS k, dk = dS' q.
    """
    (dy, q, k, v, saved), (dq, dk, dv) = ins, outs
    scaled, mask, first, second, part, row = scratch
    mask = _mask(xp, mask, attrs["causal"])
    factor = q.dtype.type(attrs["scale"])
    if not q.shape[2]:
        dk[...] = dv[...] = 0
    for at, some, seen in _blocks(q, k, attrs["causal"]):
        rows, keys, pulled = some.stop - some.start, k[at][:seen], dy[at][some]
        queries = xp.multiply(q[at][some], factor, out=scaled[:rows])
        p = _scores(xp, queries, keys, mask, first)
        xp.subtract(p, saved[at][some], out=p)
        xp.exp(p, out=p)
        _add_product(xp, p, pulled, dv[at], (some.start, part))
        ds = xp.matmul(v[at][:seen], pulled.T, out=second[: p.size].reshape(p.shape))
        xp.multiply(ds, p, out=ds)
        xp.add.reduce(ds, axis=0, out=row[:rows])
        xp.multiply(p, row[:rows], out=p)
        xp.subtract(ds, p, out=ds)
        _add_product(xp, ds, queries, dk[at], (some.start, part))
        xp.matmul(ds.T, keys, out=dq[at][some])
        xp.multiply(dq[at][some], factor, out=dq[at][some])


def block_scratch(q: Spec, k: Spec, scores: int) -> list[Spec]:
    """Return the specs of queries, mask, ``scores`` blocks of scores, keys, a row."""
    rows = _queries(q.shape[2], k.shape[2])
    sizes = [(rows, q.shape[3]), (rows, rows), *[(rows * k.shape[2],)] * scores]
    return [q.with_shape(s) for s in (*sizes, k.shape[2:], (rows,))]


def _queries(queries: int, keys: int) -> int:
    """Return how many queries a block has."""
    return max(1, min(queries, SCORES // max(1, keys)))


def _blocks(q: Any, k: Any, causal: bool) -> Iterator[tuple[tuple[int, int], slice, int]]:
    """Yield (sequence and head), queries, and how many keys they see."""
    queries, keys = q.shape[2], k.shape[2]
    rows = _queries(queries, keys)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for start in range(0, queries, rows):
                stop = min(start + rows, queries)
                yield (b, h), slice(start, stop), stop if causal else keys


def _mask(xp: Any, mask: Any, causal: bool) -> Any:
    """Set what hides from each query (column) of a block the keys (rows) after it."""
    if not causal:
        return None
    place = xp.arange(mask.shape[0])
    mask[...] = 0
    mask[place[:, None] > place] = -np.inf
    return mask


def _scores(xp: Any, q: Any, k: Any, mask: Any, space: Any) -> Any:
    """Return the masked scores of a block of scaled queries, (keys seen, queries) in ``space``.

    Keys come first because NumPy adds up columns many times as fast as rows.
    """
    keys, rows = k.shape[0], q.shape[0]
    scores = xp.matmul(k, q.T, out=space[: keys * rows].reshape(keys, rows))
    if mask is not None:
        last = scores[keys - rows :]
        xp.add(last, mask[:rows, :rows], out=last)
    return scores


def _add_product(xp: Any, a: Any, b: Any, total: Any, rest: tuple[int, Any]) -> None:
    """Add ``a @ b`` to the first keys of ``total``; the first block of queries sets them."""
    start, part = rest
    seen = a.shape[0]
    if start:
        xp.add(total[:seen], xp.matmul(a, b, out=part[:seen]), out=total[:seen])
    else:
        xp.matmul(a, b, out=total[:seen])
        total[seen:] = 0
