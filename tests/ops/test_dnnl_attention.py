"""Attention of oneDNN against that of NumPy, on random shapes."""

import numpy as np
import pytest
from attention_cases import SIZES, arrays, attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from two_kernels import compare, needs_dnnl, program, run

from hpctrain.autograd import Spec, primitive
from hpctrain.ops import dnnl_attention

pytestmark = [pytest.mark.serial, needs_dnnl]


@given(SIZES, st.booleans(), st.integers(0, 9))
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_averages_and_gradients_are_those_of_numpy(sizes, causal, seed):
    qkv, dy = arrays(*sizes, seed)
    given = attrs(*sizes[2:], causal)

    _, saved = compare("self_attention", [qkv], limit=1e-5, **given)
    compare("self_attention_grad", [dy, qkv, saved], limit=1e-5, **given)


def test_large_scores_do_not_overflow():
    qkv, dy = arrays(1, 40, 2, 16)
    qkv *= 30
    given = attrs(2, 16, True)

    y, saved = compare("self_attention", [qkv], limit=1e-4, **given)
    (dqkv,) = run("self_attention_grad", [dy, qkv, saved], **given)

    assert all(np.isfinite(a).all() for a in (y, saved, dqkv))


def test_a_query_depends_on_no_later_key():
    qkv, _ = arrays(1, 150, 1, 16)
    given = attrs(1, 16, True)
    (y, _), other = run("self_attention", [qkv], **given), qkv.copy()
    other[:, 101:] = 1e30

    assert np.array_equal(run("self_attention", [other], **given)[0][:, :101], y[:, :101])


def test_no_more_scores_are_there_at_once_than_those_of_a_block_of_all_heads():
    given = attrs(2, 16, False)
    spec = Spec((3, 640, 96), np.dtype(np.float32))

    (room,) = primitive("self_attention").scratch([spec], **given)

    block = 2 * dnnl_attention._ROWS * 640
    assert room.nbytes < 1.2 * 4 * block < 4 * 3 * 2 * 640 * 640 / 8


def test_what_would_not_pay_is_left_to_numpy():
    short, many = arrays(1, 15, 1, 16)[0], arrays(1, 16, 1, 15)[0]

    assert program("self_attention", [short], **attrs(1, 16, True)) is None
    assert program("self_attention", [many], **attrs(1, 15, True)) is None
