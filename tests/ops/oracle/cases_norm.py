"""Cases of norm."""

from op_cases import Case, positive


def batch(t, x, gamma, beta):
    """Return the result and the statistics."""
    axes = tuple(range(x.ndim - 1))
    y = t.nn.functional.batch_norm(
        x.movedim(-1, 1), None, None, gamma, beta, training=True, eps=1e-3
    )
    return y.movedim(1, -1), x.mean(axes), x.var(axes, correction=0)


def layer(t, x, gamma, beta):
    """Return the result and the statistics."""
    y = t.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta, 1e-3)
    return y, x.mean(-1), (x.var(-1, correction=0) + 1e-3) ** -0.5


def given(t, x, gamma, beta, mean, var):
    """Normalise with given statistics, by the formula (PyTorch does not differentiate it)."""
    return (x - mean) / (var + 1e-3).sqrt() * gamma + beta


def ours(name, channels, *shape):
    """Make a case of a normalisation."""
    function = {"batch": batch, "layer": layer, "sync_batch": batch}[name]
    return Case(
        f"{name}_norm_{'x'.join(map(str, (*shape, channels)))}",
        [(*shape, channels), (channels,), (channels,)],
        lambda ops, *a: getattr(ops, f"{name}_norm")(*a, eps=1e-3), function, loose=10,
    )  # fmt: skip


CASES = [
    ours("batch", 3, 7),
    ours("batch", 16, 3, 9, 8),
    ours("batch", 6, 2, 3, 2, 4),
    ours("layer", 5, 4),
    ours("layer", 16, 2, 9),
    ours("sync_batch", 3, 7),
    ours("sync_batch", 16, 3, 9, 8),
    ours("sync_batch", 6, 2, 3, 2, 4),
    Case(
        "batch_norm_inference", [(3, 4, 6), (6,), (6,), (6,), positive(6)],
        lambda ops, *a: ops.batch_norm_inference(*a, eps=1e-3), given, loose=10,
    ),
]  # fmt: skip
