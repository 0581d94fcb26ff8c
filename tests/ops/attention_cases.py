"""Inputs of attention, for tests of its kernels."""

import numpy as np
from hypothesis import strategies as st

SIZES = st.tuples(  # sequences, steps, heads, width of a head
    st.integers(1, 3), st.integers(16, 200), st.integers(1, 4), st.integers(16, 40)
)


def arrays(batch, steps, heads, width, seed=0):
    """Return queries, keys and values side by side, and a cotangent of the averages."""
    rng = np.random.default_rng(seed)
    qkv = rng.standard_normal((batch, steps, 3 * heads * width)).astype(np.float32)
    return qkv, rng.standard_normal((batch, steps, heads * width)).astype(np.float32)


def attrs(heads, width, causal):
    """Return the attributes of a row."""
    return {"heads": heads, "causal": causal, "scale": width**-0.5}
