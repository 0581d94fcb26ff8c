"""Cases of attention."""

from op_cases import Case

SHAPE = (2, 3, 5, 4)


def plain(causal, scale=None):
    """Make both sides of attention."""
    return (
        lambda ops, q, k, v: ops.attention(q, k, v, causal, scale)[0],
        lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale
        ),
    )


def packed(causal):
    """Make both sides of self-attention of 3 heads of 4."""

    def torch(t, x):
        q, k, v = x.reshape(2, 5, 3, 3, 4).permute(2, 0, 3, 1, 4)
        y = t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return y.transpose(1, 2).reshape(2, 5, 12)

    return lambda ops, x: ops.self_attention(x, 3, causal)[0], torch


CASES = [
    Case("attention", [SHAPE] * 3, *plain(False)),
    Case("attention_causal", [SHAPE] * 3, *plain(True)),
    Case("attention_scale", [SHAPE] * 3, *plain(False, 0.3)),
    Case("attention_keys", [SHAPE, (2, 3, 7, 4), (2, 3, 7, 4)], *plain(False)),
    Case("self_attention", [(2, 5, 36)], *packed(False)),
    Case("self_attention_causal", [(2, 5, 36)], *packed(True)),
]
