"""Exchanges: when one is done a slice holds the sum over the ranks, and nothing else moved."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpctrain.comm.compress import codec
from hpctrain.comm.timeline import Link
from hpctrain.comm.transport import MpiTransport
from hpctrain.parallel.exchange import Alone, Shared, Summed
from hpctrain.parallel.flat import Slice
from hpctrain.parallel.ways import Way

SLICES = [Slice(0, 0, 50, ()), Slice(1, 50, 51, ()), Slice(2, 51, 120, ())]


@pytest.fixture
def way(world):
    """MPI's collectives, on a group of their own."""
    with world.dup() as group:
        yield Way(MpiTransport(group), None)


def filled(rank):
    return np.arange(120.0) * (rank + 1)


def buffers(grads):
    weights = np.zeros_like(grads)
    return SimpleNamespace(riders=grads[:8], weights=weights, grads=grads, slices=SLICES)


def test_a_slice_becomes_the_sum_over_the_ranks(world, way):
    grads = filled(world.rank)

    Summed(way, grads, buffers(grads)).begin(SLICES[1]).wait()

    expected = filled(world.rank)
    expected[50:51] = sum(filled(r)[50:51] for r in range(world.size))
    np.testing.assert_array_equal(grads, expected)


def test_slices_may_be_under_way_together_and_finish_in_any_order(world, way):
    grads = filled(world.rank)
    exchange = Summed(way, grads, buffers(grads))

    pending = [exchange.begin(piece) for piece in SLICES]
    for place in (1, 2, 0):
        pending[place].wait()

    np.testing.assert_array_equal(grads, sum(filled(r) for r in range(world.size)))


@pytest.mark.serial
def test_only_gradients_are_compressed_on_the_way():
    two = SimpleNamespace(size=2)
    path = SimpleNamespace(kind="direct", groups=[two])
    way = Way(two, None, path, codec("fp16"), link=Link(1e-4, 1e8))
    grads = np.zeros(120, np.float32)

    summed, shared = (kind(way, grads, buffers(grads)) for kind in (Summed, Shared))

    assert summed.nbytes(SLICES[0]) == 2 * 50  # each way half of what is there
    assert shared.nbytes(SLICES[0]) == (2 * 50 + 4 * 50) // 2


def test_a_slice_can_be_exchanged_again(world, way):
    grads = np.ones(120)
    exchange = Summed(way, grads, buffers(grads))

    for _ in range(3):
        exchange.begin(SLICES[2]).wait()

    np.testing.assert_array_equal(grads[51:], world.size**3)


def test_all_ranks_have_the_same_bits(world, way):
    grads = np.random.default_rng(world.rank).normal(size=120)
    Summed(way, grads, buffers(grads)).begin(SLICES[2]).wait()

    assert len(set(world.allgather_obj(grads[51:].tobytes().hex()))) == 1


@pytest.mark.parametrize("piece", SLICES, ids="012")
def test_ranks_that_share_an_update_have_their_part_and_the_riders(world, way, piece):
    grads = filled(world.rank)
    exchange = Shared(way, grads, buffers(grads))

    exchange.begin(piece).wait()

    total = sum(filled(r) for r in range(world.size))
    start, stop = exchange.own(piece)
    np.testing.assert_array_equal(grads[start:stop], total[start:stop])
    if piece.index == 0:
        np.testing.assert_array_equal(grads[:8], total[:8])
    spans = world.allgather_obj([start, stop])
    edges = [piece.start, *(stop for _, stop in spans)]
    assert [start for start, _ in spans] == edges[:-1]
    assert edges[-1] == piece.stop


@pytest.mark.parametrize("piece", SLICES, ids="012")
def test_parts_that_were_updated_are_fetched(world, way, piece):
    flat = buffers(np.zeros(120))
    exchange = Shared(way, flat.grads, flat)
    start, stop = exchange.own(piece)
    flat.weights[start:stop] = np.arange(start, stop)

    exchange.gather(piece).wait()

    expected = np.zeros(120)
    expected[piece.start : piece.stop] = np.arange(piece.start, piece.stop)
    np.testing.assert_array_equal(flat.weights, expected)


def test_alone_nothing_happens():
    exchange = Alone()

    assert exchange.begin(SLICES[0]) is None
    assert exchange.own(SLICES[2]) == (51, 120)
    assert exchange.gather(SLICES[0]) is None
