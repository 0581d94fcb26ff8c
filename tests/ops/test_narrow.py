"""Products of bfloat16: oneDNN against NumPy, which widens the factors and multiplies those."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dnnl_conv import convolutions
from two_kernels import compare, kernels, run

from hpctrain import backend
from hpctrain.autograd import Spec, primitive
from hpctrain.autograd.narrow import NARROW, narrowed, wide
from hpctrain.errors import ShapeError
from hpctrain.ops.dnnl_narrow import describe_narrow, lacking

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(bool(lacking()), reason=f"bfloat16 here: {describe_narrow()}"),
]
F4 = np.dtype(np.float32)


def normal(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(F4) for s in shapes]


def rounded(*arrays):
    return [a.astype(backend.bfloat16()) for a in arrays]


@given(case=convolutions(), seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_convolutions_give_what_numpy_gives(case, seed):
    """Where oneDNN has a kernel for bfloat16: else the pass leaves the factors alone."""
    shape, kernel, biased, attrs = case
    x, weight, bias = normal(seed, shape, kernel, kernel[:1])
    (out,) = primitive("conv").infer([Spec.of(x), Spec.of(weight)], **attrs)
    (dy,) = normal(seed + 1, out.shape)
    more = [bias] if biased else []
    cases = [
        ("conv", [x, weight, *more], {}),
        ("conv_grad_data", [dy, weight], {"size": shape[1:-1]}),
        ("conv_grad_weight", [x, dy], {"kernel": kernel[1:-1]}),
    ]

    for name, (a, b, *rest), own in cases:
        specs = [Spec.of(array) for array in (a, b, *rest)]
        if primitive(name).narrow(specs, **own, **attrs):
            compare(name, [*rounded(a, b), *rest], limit=1e-5, **own, **attrs)


@given(
    sizes=st.tuples(st.integers(1, 70), st.integers(30, 90), st.integers(30, 90)),
    flipped=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 999),
)
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_products_of_matrices_give_what_numpy_gives(sizes, flipped, seed):
    m, k, n = sizes
    attrs = dict(zip(("transpose_a", "transpose_b"), flipped, strict=True))
    a, b = normal(seed, (k, m) if flipped[0] else (m, k), (n, k) if flipped[1] else (k, n))
    x, weight, bias = normal(seed, (1, m, k), (n, k), (n,))

    for name, factors, rest, own in (
        ("matmul", [a, b], [], attrs),
        ("dense", [x, weight], [bias], {}),
    ):
        specs = [Spec.of(array) for array in (*factors, *rest)]
        enough = m * k * n >= 1 << 18
        assert bool(primitive(name).narrow(specs, **own)) == enough
        if enough:
            compare(name, [*rounded(*factors), *rest], limit=1e-5, **own)


@given(
    sizes=st.tuples(st.integers(1, 600), st.integers(20, 90), st.integers(20, 90)),
    flipped=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 999),
)
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
def test_sums_of_products_are_float32(sizes, flipped, seed):
    """They are as near to those of rounded factors in float64 as float32 can be."""
    m, k, n = sizes
    attrs = dict(zip(("transpose_a", "transpose_b"), flipped, strict=True))
    shapes = (k, m) if flipped[0] else (m, k), (n, k) if flipped[1] else (k, n)
    a, b = rounded(*normal(seed, *shapes))

    (have,) = run("matmul", [a, b], **attrs)

    exact = [f.astype(np.float64) for f in (a, b)]
    exact = [f.T if turn else f for f, turn in zip(exact, flipped, strict=True)]
    size = np.abs(exact[0]) @ np.abs(exact[1])
    assert (np.abs(have - exact[0] @ exact[1]) <= 1e-6 * size).all()


RECURRENT = {"lstm": (4, (0, 3, 4)), "gru": (3, (0, 2, 3))}


def recurrent(name, seed, t, b, i, h):
    """Return the inputs of a layer, its factors in bfloat16."""
    gates, factors = RECURRENT[name]
    states = [(b, h)] * (2 if name == "lstm" else 1)
    rows = [(gates * h,)] * (1 if name == "lstm" else 2)
    given = normal(seed, (t, b, i), *states, (gates * h, i), (gates * h, h), *rows)
    scale = F4.type(h**-0.5)
    return [(rounded(a)[0] if p in factors else a) for p, a in
            enumerate(a * scale if a.ndim == 2 else a for a in given)]  # fmt: skip


@given(
    sizes=st.tuples(*(st.integers(*r) for r in ((1, 4), (8, 20), (1, 40), (60, 90)))),
    name=st.sampled_from(sorted(RECURRENT)),
    seed=st.integers(0, 999),
)
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
def test_recurrent_layers_give_what_numpy_gives(sizes, name, seed):
    """To what it makes of states that round to another neighbour."""
    given = recurrent(name, seed, *sizes)
    specs = [wide(Spec.of(a)) for a in given]
    assert primitive(name).narrow(specs) == RECURRENT[name][1]

    fast = run(name, given)
    with kernels("numpy"):
        slow = run(name, given)
    for have, want in zip(fast, slow, strict=True):
        assert have.dtype == F4
        np.testing.assert_allclose(have, want, rtol=0, atol=2e-3)


def test_states_are_rounded_as_factors_only():
    """Against a loop in float64, to what rounding to another neighbour makes of a state."""
    given = recurrent("lstm", 5, 6, 16, 24, 64)
    x, h, c, w_x, w_h, bias = (a.astype(np.float64) for a in given)
    wanted = []
    for step in x:
        near = h.astype(F4).astype(backend.bfloat16()).astype(np.float64)
        i, f, g, o = np.split(step @ w_x.T + near @ w_h.T + bias, 4, axis=1)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        wanted.append(h)

    y, h_n, c_n, *_ = run("lstm", given)

    for have, want in ((y, np.array(wanted)), (h_n, h), (c_n, c)):
        np.testing.assert_allclose(have, want, rtol=0, atol=1e-3)
        assert np.abs(have - want).mean() < 2e-5


@pytest.mark.parametrize("name", sorted(RECURRENT))
def test_gradients_of_recurrent_layers_give_what_numpy_gives(name):
    given = recurrent(name, 3, 4, 16, 20, 64)
    y, *ends, gates, kept = run(name, given)
    dy, *dends = normal(4, y.shape, *(e.shape for e in ends))
    w_h = given[RECURRENT[name][1][-1]]
    before = [given[2]] if name == "lstm" else [given[1]]
    saved = [gates, kept] if name == "lstm" else [y, gates, kept]
    given = [dy, *dends, *before, w_h, *saved]

    fast = run(f"{name}_grad", given)
    with kernels("numpy"):
        slow = run(f"{name}_grad", given)
    for have, want in zip(fast, slow, strict=True):
        np.testing.assert_allclose(have, want, rtol=0, atol=2e-3 * max(1, np.abs(want).max()))


def averages(qkv, heads, causal, scale):
    """Return what `self_attention` gives, in float64."""
    b, t, width = qkv.shape
    parts = qkv.astype(np.float64).reshape(b, t, 3, heads, -1).transpose(2, 0, 3, 1, 4)
    q, k, v = parts
    scores = q @ k.swapaxes(2, 3) * scale
    if causal:
        scores = np.where(np.tri(t, dtype=bool), scores, -np.inf)
    top = scores.max(axis=3, keepdims=True)
    saved = top + np.log(np.exp(scores - top).sum(axis=3, keepdims=True))
    y = np.exp(scores - saved) @ v
    return y.transpose(0, 2, 1, 3).reshape(b, t, width // 3), saved[..., 0]


@given(
    st.integers(1, 3), st.integers(16, 140), st.integers(1, 4), st.integers(16, 40),
    st.booleans(), st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
def test_attention_gives_what_numpy_gives(batch, steps, heads, width, causal, seed):
    """To what rounding of probabilities and of the gradients of scores makes of it."""
    inner = heads * width
    shapes = (batch, steps, 3 * inner), (batch, steps, inner)
    qkv, dy = rounded(*normal(seed, *shapes))
    attrs = {"heads": heads, "causal": causal, "scale": width**-0.5}
    specs = [Spec(s, F4) for s in (*shapes[::-1], (batch, heads, steps))]
    assert primitive("self_attention").narrow([specs[1]], **attrs) == range(1)
    assert primitive("self_attention_grad").narrow(specs, **attrs) == range(2)

    y, saved = run("self_attention", [qkv], **attrs)
    (grad,) = run("self_attention_grad", [dy, qkv, saved], **attrs)

    wanted = averages(qkv, heads, causal, attrs["scale"])
    with kernels("numpy"):
        wanted += tuple(run("self_attention_grad", [dy, qkv, saved], **attrs))
    for have, want, limit in zip((y, saved, grad), wanted, (6e-3, 1e-5, 6e-3), strict=True):
        assert have.dtype == F4
        np.testing.assert_allclose(have, want, rtol=0, atol=limit * np.abs(want).max())


def test_weights_that_meet_padding_alone_have_no_gradient():
    """The library's kernel for AMX does not write them."""
    x, dy = normal(1, (1, 2, 40), (1, 1, 50))
    attrs = {"stride": (3,), "padding": ((1, 0),), "dilation": (1,), "groups": 5}

    (dw,) = run("conv_grad_weight", rounded(x, dy), kernel=(2,), **attrs)

    assert not dw[:, 0].any()
    assert dw[:, 1].all()


def test_factors_are_bfloat16_together_or_not_at_all():
    x, weight = Spec((2, 9, 9, 4), F4), Spec((3, 3, 3, 4), F4)
    attrs = {"stride": (1, 1), "padding": ((1, 1),) * 2, "dilation": (1, 1), "groups": 1}

    (out,) = primitive("conv").infer([narrowed(x), narrowed(weight)], **attrs)
    assert out == Spec((2, 9, 9, 3), F4)
    with pytest.raises(ShapeError, match=NARROW):
        primitive("conv").infer([narrowed(x), weight], **attrs)
    with pytest.raises(ShapeError, match=NARROW):
        given = [Spec.of(a) for a in recurrent("lstm", 1, 2, 8, 8, 8)]
        primitive("lstm").infer([wide(given[0]), *given[1:]])
    assert narrowed(Spec((2,), np.dtype(np.float64))) is None


def test_what_a_device_lacks_is_said():
    assert lacking(backend.Device("gpu", 0)) == "kernels for GPUs"
    assert describe_narrow() in ("yes, by AMX", "yes, by AVX512_BF16")
    with kernels("numpy"):
        assert describe_narrow() == "no, for want of oneDNN (pip install 'hpctrain[fast]')"
        assert primitive("matmul").narrow([Spec((99, 99), F4)] * 2) == ()
