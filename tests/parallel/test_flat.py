"""Flat buffers: every element in one slice, every parameter a view."""

from itertools import pairwise

import numpy as np
import pytest

from hpctrain.autograd import Tensor
from hpctrain.errors import ShapeError
from hpctrain.parallel.flat import RIDER_BYTES, FlatParameters, make_offsets, make_slices

pytestmark = pytest.mark.serial
LIMITS = [1, 2, 3, 7, 16, 17, 31, 100, 10_000]


def drawn(seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 130, rng.integers(1, 12)).tolist()


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("seed", range(5))
def test_parameters_follow_the_riders_aligned_and_apart(seed, itemsize):
    sizes = drawn(seed)

    offsets, total = make_offsets(sizes, itemsize)

    assert offsets[0] * itemsize == RIDER_BYTES
    assert all(o * itemsize % RIDER_BYTES == 0 for o in [*offsets, total])
    ends = [*offsets[1:], total]
    assert all(
        0 <= e - o - n < RIDER_BYTES // itemsize
        for o, n, e in zip(offsets, sizes, ends, strict=True)
    )


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("seed", range(5))
def test_slices_cover_the_buffer_exactly(seed, limit):
    sizes = drawn(seed)
    offsets, total = make_offsets(sizes, 4)

    slices = make_slices(offsets, sizes, total, limit)

    assert [s.index for s in slices] == list(range(len(slices)))
    assert (slices[0].start, slices[-1].stop) == (0, total)
    assert all(a.stop == b.start for a, b in pairwise(slices))
    for piece in slices:
        inside = [
            i
            for i, (o, n) in enumerate(zip(offsets, sizes, strict=True))
            if n and o < piece.stop and o + n > piece.start
        ]
        assert [i for i in piece.parameters if sizes[i]] == inside


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("seed", range(5))
def test_slices_have_about_the_limit(seed, limit):
    sizes = drawn(seed)
    offsets, total = make_offsets(sizes, 4)
    head = offsets[0]

    slices = make_slices(offsets, sizes, total, limit)

    for piece in slices:
        # Less than half only what is left at the end; the riders come on top.
        assert piece.stop - max(piece.start, head) <= 1.5 * limit
        assert 2 * (piece.stop - piece.start) >= min(limit, 2) or piece.stop == total


@pytest.mark.parametrize("limit", LIMITS)
def test_the_riders_are_the_head_of_the_first_slice(limit):
    offsets, total = make_offsets([40, 3], 4)

    assert make_slices(offsets, [40, 3], total, limit)[0].stop > offsets[0]


def test_a_long_parameter_is_cut_into_equal_parts():
    offsets, total = make_offsets([1024], 4)

    slices = make_slices(offsets, [1024], total, 300)

    assert [s.stop - s.start for s in slices] == [16 + 256, 256, 256, 256]
    assert all(s.parameters == (0,) for s in slices)


def test_short_parameters_share_a_slice():
    sizes = [16] * 8
    offsets, total = make_offsets(sizes, 4)

    slices = make_slices(offsets, sizes, total, 64)

    assert [len(s.parameters) for s in slices] == [1, 2, 2, 2, 1]  # the first with the riders


def test_slices_are_numbered_in_32_bits_whatever_the_limit():
    sizes = [5 * 10**9, 3, 2**31]
    offsets, total = make_offsets(sizes, 4)

    slices = make_slices(offsets, sizes, total, 2**40)

    assert max(s.stop - s.start for s in slices) < 2**31
    assert all(a.stop == b.start for a, b in pairwise(slices))
    assert (slices[0].start, slices[-1].stop) == (0, total)


def test_a_limit_below_one_is_refused():
    with pytest.raises(ShapeError, match="got a limit of 0 elements, needed at least 1"):
        make_slices([16], [3], 32, 0)


def tensors(*shapes, dtype=np.float32):
    rng = np.random.default_rng(0)
    made = [Tensor(rng.normal(size=s).astype(dtype)) for s in shapes]
    for tensor in made:
        tensor.attach_grad()
    return made


def test_adopted_tensors_keep_their_values_and_become_views():
    made = tensors((3, 4), (), (5,), (0, 2))
    before = [t.asnumpy().copy() for t in made]

    flat = FlatParameters(made, 64)

    for tensor, value in zip(made, before, strict=True):
        np.testing.assert_array_equal(tensor.asnumpy(), value)
        assert tensor.array.base is not None
        assert tensor.grad.shape == tensor.shape
    flat.weights[...] = 7
    flat.grads[...] = 8
    for tensor in made:
        np.testing.assert_array_equal(tensor.asnumpy(), 7)
        np.testing.assert_array_equal(tensor.grad.asnumpy(), 8)
    assert flat.weights.ctypes.data % 64 == 0
    assert flat.riders.nbytes == RIDER_BYTES


def test_padding_and_riders_are_zero():
    flat = FlatParameters(tensors((3,), (20,)), 64)
    mine = np.zeros(flat.total, bool)
    for offset, size in zip(flat.offsets, flat.sizes, strict=True):
        mine[offset : offset + size] = True

    np.testing.assert_array_equal(flat.weights[~mine], 0)
    np.testing.assert_array_equal(flat.grads, 0)


def test_two_dtypes_are_refused():
    mixed = [*tensors((3,)), *tensors((3,), dtype=np.float64)]

    with pytest.raises(ShapeError, match="got 2 dtypes, needed one"):
        FlatParameters(mixed, 64)


@pytest.mark.parametrize("slice_bytes", [1, 40, 100, 1000])
def test_where_lists_the_slices_of_each_parameter(slice_bytes):
    flat = FlatParameters(tensors((30,), (2,), (50,), (7, 3)), slice_bytes)

    for place, slices in enumerate(flat.where()):
        covered = {e for s in slices for e in range(flat.slices[s].start, flat.slices[s].stop)}
        start = flat.offsets[place]
        assert set(range(start, start + flat.sizes[place])) <= covered


@pytest.mark.parametrize("slice_bytes", [1, 40, 100, 1000])
def test_runs_cover_each_element_once_with_its_own_factors(slice_bytes):
    flat = FlatParameters(tensors((30,), (2,), (50,), (7, 3), (4,)), slice_bytes)
    factors = [(1.0, 1.0), (1.0, 0.0), (1.0, 0.0), (2.0, 1.0), (1.0, 1.0)]
    seen = np.zeros((flat.total, 2))
    times = np.zeros(flat.total, int)

    for piece in flat.slices:
        for start, stop, pair in flat.runs(piece, factors):
            assert piece.start <= start <= stop <= piece.stop
            seen[start:stop] = pair
            times[start:stop] += 1

    assert times.max() == 1
    for place, (offset, size) in enumerate(zip(flat.offsets, flat.sizes, strict=True)):
        np.testing.assert_array_equal(times[offset : offset + size], 1)
        np.testing.assert_array_equal(seen[offset : offset + size], [factors[place]] * size)


def test_runs_of_equal_factors_are_one():
    flat = FlatParameters(tensors((30,), (2,), (50,)), 10_000)

    (piece,) = flat.slices

    assert flat.runs(piece, [(1.0, 1.0)] * 3) == [(16, flat.total, (1.0, 1.0))]


def test_named_parts_are_views_by_name():
    flat = FlatParameters(tensors((3, 4), (5,)), 64)

    named = flat.named(["a", "b"], flat.weights)

    assert {n: a.shape for n, a in named.items()} == {"a": (3, 4), "b": (5,)}
    assert np.shares_memory(named["a"], flat.weights)
