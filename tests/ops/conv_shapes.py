"""Random shapes of convolutions, for comparisons of kernels."""

import numpy as np
from hypothesis import strategies as st

__all__ = ["convolutions", "normal"]


@st.composite
def convolutions(draw):
    """Return shapes of x and weight, whether there is a bias, and attributes."""
    axes = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 5, 16]))
    inner, outer = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    if draw(st.booleans()) and groups > 1:
        inner, outer = 1, draw(st.integers(1, 2))  # depthwise
    kernel, stride, dilation, padding, size = [], [], [], [], []
    for _ in range(axes):
        k, d = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        reach = max(1, d * (k - 1) + 1 - before - after)
        kernel.append(k)
        dilation.append(d)
        stride.append(draw(st.integers(1, 3)))
        padding.append((before, after))
        size.append(draw(st.integers(reach, reach + 9)))
    x = (draw(st.integers(1, 3)), *size, inner * groups)
    attrs = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation)}
    weight = (outer * groups, *kernel, inner)
    return x, weight, draw(st.booleans()), {**attrs, "groups": groups}


def normal(rng, *shapes):
    return [rng.standard_normal(s).astype(np.float32) for s in shapes]
