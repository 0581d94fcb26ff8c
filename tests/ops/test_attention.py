"""Attention against the plain formula in float64."""

import numpy as np
import pytest

from hpctrain.autograd import Tensor, backward, check_gradients, record
from hpctrain.errors import ShapeError
from hpctrain.ops.attention import attention, self_attention

pytestmark = pytest.mark.serial
SHAPES = [(2, 3, 7, 7, 4), (1, 2, 5, 9, 3), (1, 1, 1, 1, 1), (0, 2, 3, 3, 4), (2, 0, 3, 3, 4)]


def formula(q, k, v, causal=False, scale=None):
    scores = np.einsum("bhtd,bhsd->bhts", q, k) * (
        q.shape[-1] ** -0.5 if scale is None else scale
    )
    if causal:
        scores = np.where(np.tri(q.shape[2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("bhts,bhsd->bhtd", weights / weights.sum(axis=-1, keepdims=True), v)


def arrays(b, h, t, s, d, dtype=np.float64):
    rng = np.random.default_rng(4)
    shapes = [(b, h, t, d), (b, h, s, d), (b, h, s, d)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize(
    ("shape", "causal"),
    [(s, False) for s in SHAPES] + [(s, True) for s in SHAPES if s[2] == s[3]],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_attention_is_the_formula(shape, causal, dtype):
    q, k, v = arrays(*shape, dtype)

    y, _ = attention(q, k, v, causal)

    assert y.dtype == dtype
    np.testing.assert_allclose(y.asnumpy(), formula(q, k, v, causal), 0, 1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_agree_with_differences(causal):
    check_gradients(lambda *a: attention(*a, causal)[0], arrays(2, 2, 5, 5, 3), order=2)


def test_gradients_to_other_keys_agree_with_differences():
    check_gradients(lambda *a: attention(*a, scale=0.3)[0], arrays(1, 2, 4, 6, 3), order=2)


@pytest.mark.parametrize("causal", [False, True])
def test_many_blocks_of_queries_give_what_one_gives(causal, monkeypatch):
    q, k, v = arrays(2, 2, 11, 11, 4)
    monkeypatch.setattr("hpctrain.ops.scores.SCORES", 35)

    y, _ = attention(q, k, v, causal)

    np.testing.assert_allclose(y.asnumpy(), formula(q, k, v, causal), 1e-10)
    check_gradients(lambda *a: attention(*a, causal)[0], (q, k, v))


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_is_attention_of_its_parts(causal):
    qkv = np.random.default_rng(5).standard_normal((2, 6, 3 * 2 * 4))
    parts = [p.reshape(2, 6, 2, 4).transpose(0, 2, 1, 3) for p in np.split(qkv, 3, axis=2)]

    y, _ = self_attention(qkv, 2, causal)

    expected = formula(*parts, causal).transpose(0, 2, 1, 3).reshape(2, 6, 8)
    np.testing.assert_allclose(y.asnumpy(), expected, 1e-10)
    check_gradients(lambda a: self_attention(a, 2, causal)[0], [qkv], order=2)


def test_large_scores_do_not_overflow():
    q, k, v = arrays(1, 1, 4, 4, 8, np.float32)

    y, _ = attention(q * 1000, k, v)

    np.testing.assert_allclose(y.asnumpy(), formula(q * 1000, k, v), 0, 1e-4)


def test_views_of_a_packed_array_are_right():
    qkv = Tensor(np.random.default_rng(6).standard_normal((2, 5, 3, 2, 4)))
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))

    y, _ = attention(q, k, v)

    np.testing.assert_allclose(y.asnumpy(), formula(*(t.asnumpy() for t in (q, k, v))), 1e-10)
    assert y.transpose(0, 2, 1, 3).array.flags.c_contiguous


def test_the_saved_sums_have_no_gradient():
    q, k, v = map(Tensor, arrays(1, 1, 2, 2, 2))
    q.attach_grad()
    with record():
        _, saved = attention(q, k, v)

    with pytest.raises(ShapeError, match="no rule of its own"):
        backward(saved)


def test_causal_attention_needs_as_many_keys_as_queries():
    with pytest.raises(ShapeError, match="5 queries and 6 keys"):
        attention(*arrays(1, 1, 5, 6, 2), causal=True)


def test_heads_must_divide_the_width():
    with pytest.raises(ShapeError, match="5 heads"):
        self_attention(np.zeros((1, 2, 24)), 5)
