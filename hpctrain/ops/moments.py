"""Normalisation kernels: few passes, in blocks that stay in cache, with long inner loops.

Dimension key: M rows, C channels. For statistics over rows, rows are folded side by side to
about a thousand elements (see `hpctrain.ops.blocks`), and every vector of C is repeated over
such a wide row.

Variances are means of squared deviations from the mean (two passes): the difference of the
mean square and the squared mean loses all digits where the mean is large.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.ops.blocks import BLOCK, row_spec, spans

__all__ = [
    "accumulate", "batch_normalise", "batch_pull_back", "batch_scratch", "layer_normalise",
    "layer_pull_back", "layer_scratch", "repeat", "rescale", "start", "sum_of", "sum_pulled",
    "wide_blocks",
]  # fmt: skip

# Elements of a block of wide rows: here loop overhead weighs more than the caches (measured
# on 64 x 32 x 32 x 16, Sapphire Rapids: 16384 take 1.3 times as long).
WIDE_BLOCK = 4 * BLOCK


def batch_scratch(x: Spec, vectors: int) -> list[Spec]:
    """Return the specs of one block and of ``vectors`` wide rows."""
    wide = row_spec(x, x.shape[-1])
    return [x.with_shape((max(WIDE_BLOCK, wide.size),)), *[wide] * vectors]


def batch_normalise(xp: Any, ins: Any, outs: Any, eps: float, scratch: Any) -> None:
    """Write y, mean and var from (x, gamma, beta): statistics of each channel."""
    (x, gamma, beta), (y, mean, var) = ins, outs
    block, wide, total, part = scratch
    start(total)
    for (rows,) in wide_blocks([x], wide):
        accumulate(xp, rows, total, part)
    _mean_of(xp, total, x, mean)
    repeat(wide, mean)
    start(total)
    for rows, out in wide_blocks([x, y], wide):
        square = block[: rows.size].reshape(rows.shape)
        xp.subtract(rows, wide[: rows.shape[1]], out=out)
        xp.multiply(out, out, out=square)
        accumulate(xp, square, total, part)
    _mean_of(xp, total, x, var)
    scale = part[: var.size]
    reciprocal_root(xp, var, eps, scale)
    xp.multiply(scale, gamma, out=scale)
    repeat(wide, scale)
    repeat(total, beta)
    for (out,) in wide_blocks([y], wide):
        xp.multiply(out, wide[: out.shape[1]], out=out)
        xp.add(out, total[: out.shape[1]], out=out)


def sum_pulled(xp: Any, dy: Any, x: Any, mean: Any, scratch: Any) -> None:
    """Sum dy (x - mean), and dy, over the rows of each channel, into rows still to be folded.

    ``scratch``: block, wide, total, part, other. The sums are left in ``total`` and ``other``,
    and the mean, repeated, in ``wide``.
    """
    block, wide, total, part, other = scratch
    repeat(wide, mean)
    start(total)
    start(other)
    for rows, pulled in wide_blocks([x, dy], wide):
        product = block[: rows.size].reshape(rows.shape)
        xp.subtract(rows, wide[: rows.shape[1]], out=product)
        xp.multiply(product, pulled, out=product)
        accumulate(xp, product, total, part)
        accumulate(xp, pulled, other, part)


def pull(xp: Any, dy: Any, x: Any, dx: Any, scratch: Any) -> None:
    """Write dx = a dy + b (x - mean) + c.

    ``scratch``: block, and the mean, a, b and c, all repeated.
    """
    block, wide, a, b, c = scratch
    for rows, pulled, out in wide_blocks([x, dy, dx], wide):
        width, term = rows.shape[1], block[: rows.size].reshape(rows.shape)
        xp.subtract(rows, wide[:width], out=out)
        xp.multiply(out, b[:width], out=out)
        xp.multiply(pulled, a[:width], out=term)
        xp.add(term, c[:width], out=term)
        xp.add(out, term, out=out)


def batch_pull_back(xp: Any, ins: Any, outs: Any, eps: float, scratch: Any) -> None:
    """Write dx, dgamma and dbeta from (dy, x, gamma, mean, var).

    dx = gamma rstd (dy - mean(dy) - xhat mean(dy xhat)) = a dy + b (x - mean) + c.
    """
    (dy, x, gamma, mean, var), (dx, dgamma, dbeta) = ins, outs
    block, _, total, part, other = scratch
    rstd = block[: var.size]
    sum_pulled(xp, dy, x, mean, scratch)
    sum_of(xp, total, dgamma)
    sum_of(xp, other, dbeta)
    reciprocal_root(xp, var, eps, rstd)
    xp.multiply(dgamma, rstd, out=dgamma)
    a, b, c = total, part, other  # as `pull` has them
    count = max(1, x.size // max(1, mean.size))
    first = gamma * rstd
    repeat(b, first * rstd * dgamma * (-1 / count))
    repeat(c, first * dbeta * (-1 / count))
    repeat(a, first)
    pull(xp, dy, x, dx, scratch)


def rescale(xp: Any, ins: Any, y: Any, scratch: Any) -> None:
    """Write y from (x, scale, shift), one of each for each channel, in one pass."""
    x, scale, shift = ins
    wide, other = scratch
    repeat(wide, scale)
    repeat(other, shift)
    for rows, out in wide_blocks([x, y], wide):
        xp.multiply(rows, wide[: rows.shape[1]], out=out)
        xp.add(out, other[: rows.shape[1]], out=out)


def layer_scratch(x: Spec, blocks: int) -> list[Spec]:
    """Return the specs of ``blocks`` blocks of whole rows, a vector and a column of C."""
    width = x.shape[-1]
    block = (max(BLOCK, width),)
    sizes = [block] * blocks + [(width,), (width, 1)]
    return [x.with_shape(s) for s in sizes]


def layer_normalise(xp: Any, ins: Any, outs: Any, eps: float, scratch: Any) -> None:
    """Write y, mean and rstd from (x, gamma, beta): statistics of each row."""
    (x, gamma, beta), (y, mean, rstd) = ins, outs
    share = scratch[-1]
    share[...] = 1 / max(1, x.shape[-1])
    for rows, out, m, r in _rows([x, y], [mean, rstd]):
        xp.matmul(rows, share, out=m)
        xp.subtract(rows, m, out=out)
        _row_products(xp, out, out, r)
        xp.multiply(r, share[0], out=r)
        reciprocal_root(xp, r, eps, r)
        xp.multiply(out, r, out=out)
        xp.multiply(out, gamma, out=out)
        xp.add(out, beta, out=out)


def layer_pull_back(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
    """Write dx, dgamma and dbeta from (dy, x, gamma, mean, rstd).

    dx = rstd (h - mean(h) - xhat mean(h xhat)), h = gamma dy, means of each row.
    """
    (dy, x, gamma, mean, rstd), (dx, dgamma, dbeta) = ins, outs
    first, second, column, part, share = scratch
    dgamma[...] = 0
    dbeta[...] = 0
    share[...] = 1 / max(1, x.shape[-1])
    for pulled, rows, out, m, r in _rows([dy, x, dx], [mean, rstd]):
        hat, term = (s[: rows.size].reshape(rows.shape) for s in (first, second))
        means = column[: rows.shape[0], None]
        xp.subtract(rows, m, out=hat)
        xp.multiply(hat, r, out=hat)
        xp.multiply(pulled, hat, out=term)
        accumulate(xp, term, dgamma, part)
        accumulate(xp, pulled, dbeta, part)
        xp.multiply(pulled, gamma, out=out)
        _row_products(xp, out, hat, means)
        xp.multiply(means, share[0], out=means)
        xp.multiply(hat, means, out=hat)
        xp.matmul(out, share, out=means)
        xp.subtract(out, means, out=out)
        xp.subtract(out, hat, out=out)
        xp.multiply(out, r, out=out)


def wide_blocks(arrays: Sequence[Any], wide: Any) -> Iterator[list[Any]]:
    """Cut arrays (..., C) into blocks of rows as wide as ``wide``, and what is left, (r, C)."""
    channels, width = arrays[0].shape[-1], wide.size
    flat = [a.reshape(-1) for a in arrays]
    cut = flat[0].size // width * width if width else 0
    step = max(1, WIDE_BLOCK // max(1, width))
    for some in spans(cut // max(1, width), step):
        yield [f[:cut].reshape(-1, width)[some] for f in flat]
    if cut < flat[0].size:
        yield [f[cut:].reshape(-1, channels) for f in flat]


def _rows(arrays: Sequence[Any], vectors: Sequence[Any]) -> Iterator[list[Any]]:
    """Cut arrays (..., C) into blocks (m, C), and vectors (...) into (m, 1)."""
    channels = arrays[0].shape[-1]
    flat = [a.reshape(-1, channels) for a in arrays] if channels else []
    count = flat[0].shape[0] if flat else 0
    step = max(1, BLOCK // max(1, channels))
    for some in spans(count, step):
        yield [f[some] for f in flat] + [v.reshape(-1, 1)[some] for v in vectors]


def start(total: Any) -> None:
    """Begin a sum."""
    total[...] = 0


def repeat(wide: Any, vector: Any) -> None:
    """Lay a vector of C side by side until a wide row is full."""
    wide.reshape(-1, vector.size)[...] = vector


def accumulate(xp: Any, rows: Any, total: Any, part: Any) -> None:
    """Add the sum of ``rows`` to ``total``: sums of sums lose fewer digits than a long sum."""
    width = rows.shape[1]
    xp.add.reduce(rows, axis=0, out=part[:width])
    xp.add(total[:width], part[:width], out=total[:width])


def sum_of(xp: Any, total: Any, out: Any) -> None:
    """Add up the channels that lie side by side in a wide row."""
    xp.add.reduce(total.reshape(-1, out.size), axis=0, out=out)


def _mean_of(xp: Any, total: Any, x: Any, out: Any) -> None:
    sum_of(xp, total, out)
    xp.multiply(out, out.dtype.type(out.size / max(1, x.size)), out=out)


def _row_products(xp: Any, a: Any, b: Any, out: Any) -> None:
    """Write the inner product of each row of ``a`` with that of ``b`` into (m, 1)."""
    xp.matmul(a[:, None], b[:, :, None], out=out[:, :, None])


def reciprocal_root(xp: Any, var: Any, eps: float, out: Any) -> None:
    """Write one over the root of ``var`` plus ``eps``."""
    xp.add(var, var.dtype.type(eps), out=out)
    xp.sqrt(out, out=out)
    xp.reciprocal(out, out=out)
