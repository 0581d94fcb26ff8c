"""Kernels of batch normalisation over all processes that share a batch.

Dimension key: C channels, p processes. Each process makes (n, mean, M2) of each channel of
its part: the number of rows, their mean, and the sum of squared deviations from it. These
are merged all at once: to the sum of M2 each part adds n times the square of the deviation of
its mean from the common one. All of it is stable where the mean is large against deviations.

What is merged is in float64 whatever the dtype of the batch, and small: it is allocated here.

References
----------
Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances", Stanford STAN-CS-79-773 (1979); "Algorithms for computing the sample variance",
The American Statistician 37 (1983) 242-247, for the corrected two-pass formula.
"""

from typing import Any

from hpctrain.ops.moments import (
    accumulate,
    pull,
    repeat,
    start,
    sum_of,
    sum_pulled,
    wide_blocks,
)

__all__ = ["add_parts", "merge_moments", "sync_normalise", "sync_pull_back"]

# The first guess of the mean reads every fourth block. Whatever is in the others, the guess
# is off by at most sqrt(3) standard deviations, so that the correction costs 2 bits at most.
SAMPLED = 4


def merge_moments(parts: Any) -> Any:
    """Merge (n, mean, M2) of p parts, shape (p, 3, C), into one, shape (3, C)."""
    n = parts[:, 0]
    merged = parts[0].copy()
    merged[0] = n.sum(axis=0)
    merged[1] = (n * parts[:, 1]).sum(axis=0) / merged[0].clip(1)  # nobody may have a row
    merged[2] = (parts[:, 2] + n * (parts[:, 1] - merged[1]) ** 2).sum(axis=0)
    return merged


def add_parts(parts: Any) -> Any:
    """Add up the parts of p processes, along the first axis."""
    return parts.sum(axis=0)


def sync_normalise(
    xp: Any, ins: Any, outs: Any, scratch: Any, eps: float, combine: Any
) -> None:
    """Write y, mean, var, low and count from (x, gamma, beta).

    ``scratch``: `hpctrain.ops.moments.batch_scratch` with 4 vectors.
    """
    (x, gamma, beta), (y, mean, var, low, count) = ins, outs
    _, wide, total, _, _ = scratch
    guess, mine = _own_moments(xp, x, y, mean, scratch)
    merged = combine(mine, merge_moments)
    n = xp.maximum(merged[0], 1)
    mean[...] = merged[1]
    low[...] = merged[1] - mean
    variance = merged[2] / n
    var[...] = variance
    count[...] = n[0]
    scale = gamma / xp.sqrt(variance + eps)
    repeat(wide, scale)
    repeat(total, beta + (guess - merged[1]) * scale)  # y holds x - guess
    for (out,) in wide_blocks([y], wide):
        xp.multiply(out, wide[: out.shape[1]], out=out)
        xp.add(out, total[: out.shape[1]], out=out)


def _own_moments(xp: Any, x: Any, y: Any, mean: Any, scratch: Any) -> tuple[Any, Any]:
    """Return a guess of the mean, and (n, mean, M2); y becomes x minus the guess."""
    block, wide, total, part, other = scratch
    start(total)
    seen = 0
    for place, (rows,) in enumerate(wide_blocks([x], wide)):
        if place % SAMPLED == 0:
            accumulate(xp, rows, total, part)
            seen += rows.size
    sum_of(xp, total, mean)
    mean /= max(1, seen // mean.size)
    repeat(wide, mean)
    start(total)
    start(other)
    for rows, out in wide_blocks([x, y], wide):
        square = block[: rows.size].reshape(rows.shape)
        xp.subtract(rows, wide[: rows.shape[1]], out=out)
        accumulate(xp, out, other, part)
        xp.multiply(out, out, out=square)
        accumulate(xp, square, total, part)
    guess = mean.astype("float64")
    mine = _wide_sums(xp, [total, other, total], mean.size)
    n = x.size // mean.size
    rest = mine[1] / max(1, n)
    mine[0] = n
    mine[1] = guess + rest
    mine[2] -= n * rest * rest
    xp.maximum(mine[2], 0, out=mine[2])
    return guess, mine


def sync_pull_back(
    xp: Any, ins: Any, outs: Any, scratch: Any, eps: float, combine: Any
) -> None:
    """Write dx, dgamma and dbeta from (dy, x, gamma, mean, var, low, count).

    dx = gamma rstd (dy - E[dy] - xhat E[dy xhat]) = a dy + b (x - mean) + c, where E is over
    all processes; dgamma and dbeta are the sums of this one. ``scratch``: as forward.
    """
    (dy, x, gamma, mean, var, low, count), (dx, dgamma, dbeta) = ins, outs
    _, _, total, part, other = scratch
    sum_pulled(xp, dy, x, mean, scratch)
    mine = _wide_sums(xp, [total, other], mean.size)
    mine[0] -= low * mine[1]
    rstd = 1 / xp.sqrt(var.astype("float64") + eps)
    dgamma[...] = mine[0] * rstd
    dbeta[...] = mine[1]
    sums = combine(mine, add_parts) / count.astype("float64")
    first = gamma * rstd
    slope = -first * rstd * rstd * sums[0]
    a, b, c = total, part, other  # as `pull` has them
    repeat(a, first)
    repeat(b, slope)
    repeat(c, -first * sums[1] - slope * low)
    pull(xp, dy, x, dx, scratch)


def _wide_sums(xp: Any, totals: Any, channels: int) -> Any:
    """Add up the channels that lie side by side in wide rows, in float64: (rows, C)."""
    sums = xp.empty((len(totals), channels), "float64")
    for total, out in zip(totals, sums, strict=True):
        xp.add.reduce(total.reshape(-1, channels), axis=0, dtype=sums.dtype, out=out)
    return sums
