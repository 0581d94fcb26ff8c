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
    scaled, mask, space, _, column = scratch
    mask = _mask(xp, mask, attrs["causal"])
    for at, some, seen in _blocks(q, k, attrs["causal"]):
        rows = some.stop - some.start
        queries = xp.multiply(q[at][some], q.dtype.type(attrs["scale"]), out=scaled[:rows])
        scores = space[: rows * seen].reshape(rows, seen)
        _scores(xp, queries, k[at][:seen], mask, scores)
        top, log = column[:rows], saved[at][some, None]
        xp.max(scores, axis=1, keepdims=True, out=top)
        xp.subtract(scores, top, out=scores)  # so that no exponential overflows
        xp.exp(scores, out=scores)
        xp.sum(scores, axis=1, keepdims=True, out=log)
        xp.matmul(scores, v[at][:seen], out=y[at][some])
        xp.divide(y[at][some], log, out=y[at][some])
        xp.log(log, out=log)
        xp.add(log, top, out=log)


def pull_back(xp: Any, ins: Any, outs: Any, scratch: Any, attrs: dict[str, Any]) -> None:
    """Write dq, dk and dv, of any strides, from (dy, q, k, v, saved).

    With P the probabilities: dv = P' dy, dS = P (dy v' - row sums), dq = dS k, dk = dS' q.
    """
    (dy, q, k, v, saved), (dq, dk, dv) = ins, outs
    scaled, mask, first, second, part, column = scratch
    mask = _mask(xp, mask, attrs["causal"])
    dk[...] = 0
    dv[...] = 0
    factor = q.dtype.type(attrs["scale"])
    for at, some, seen in _blocks(q, k, attrs["causal"]):
        rows, keys, pulled = some.stop - some.start, k[at][:seen], dy[at][some]
        queries = xp.multiply(q[at][some], factor, out=scaled[:rows])
        p, ds = (s[: rows * seen].reshape(rows, seen) for s in (first, second))
        _scores(xp, queries, keys, mask, p)
        xp.subtract(p, saved[at][some, None], out=p)
        xp.exp(p, out=p)
        _add_product(xp, p.T, pulled, dv[at][:seen], part)
        xp.matmul(pulled, v[at][:seen].T, out=ds)
        xp.multiply(ds, p, out=ds)
        xp.sum(ds, axis=1, keepdims=True, out=column[:rows])
        xp.multiply(p, column[:rows], out=p)
        xp.subtract(ds, p, out=ds)
        _add_product(xp, ds.T, queries, dk[at][:seen], part)
        xp.matmul(ds, keys, out=dq[at][some])
        xp.multiply(dq[at][some], factor, out=dq[at][some])


def block_scratch(q: Spec, k: Spec, scores: int) -> list[Spec]:
    """Return the specs of query block, mask, ``scores`` blocks of scores, and a sum of keys."""
    rows = _queries(q.shape[2], k.shape[2])
    sizes = [(rows, q.shape[3]), (rows, rows), *[(rows * k.shape[2],)] * scores]
    return [q.with_shape(s) for s in (*sizes, k.shape[2:], (rows, 1))]


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
    """Let each query of a block see the keys of the block up to itself."""
    if not causal:
        return None
    place = xp.arange(mask.shape[0])
    mask[...] = 0
    mask[place[:, None] < place] = -np.inf
    return mask


def _scores(xp: Any, q: Any, k: Any, mask: Any, out: Any) -> Any:
    """Write the masked scores of a block of scaled queries, (rows, keys seen)."""
    xp.matmul(q, k.T, out=out)
    if mask is not None:
        rows = q.shape[0]
        last = out[:, out.shape[1] - rows :]
        xp.add(last, mask[:rows, :rows], out=last)
    return out


def _add_product(xp: Any, a: Any, b: Any, total: Any, part: Any) -> None:
    product = xp.matmul(a, b, out=part[: a.shape[0]])
    xp.add(total, product, out=total)
