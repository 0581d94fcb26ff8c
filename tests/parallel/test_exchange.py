"""Exchanges: after ``finish`` a slice holds the sum over the ranks, and nothing else moved."""

import numpy as np

from hpctrain.parallel.exchange import AllReduce, Alone
from hpctrain.parallel.flat import Slice

SLICES = [Slice(0, 0, 5, ()), Slice(1, 5, 6, ()), Slice(2, 6, 20, ())]


def filled(rank):
    return np.arange(20.0) * (rank + 1)


def test_a_slice_becomes_the_sum_over_the_ranks(world):
    grads = filled(world.rank)
    exchange = AllReduce(world, grads)

    exchange.begin(SLICES[1])
    exchange.finish(SLICES[1])

    expected = filled(world.rank)
    expected[5:6] = sum(filled(r)[5:6] for r in range(world.size))
    np.testing.assert_array_equal(grads, expected)


def test_slices_may_be_under_way_together_and_finish_in_any_order(world):
    grads = filled(world.rank)
    exchange = AllReduce(world, grads)

    for piece in SLICES[::-1]:
        exchange.begin(piece)
    for piece in (SLICES[1], SLICES[2], SLICES[0]):
        exchange.finish(piece)

    np.testing.assert_array_equal(grads, sum(filled(r) for r in range(world.size)))


def test_a_slice_can_be_exchanged_again(world):
    grads = np.ones(20)
    exchange = AllReduce(world, grads)

    for _ in range(3):
        exchange.begin(SLICES[2])
        exchange.finish(SLICES[2])

    np.testing.assert_array_equal(grads[6:], world.size**3)


def test_all_ranks_have_the_same_bits(world):
    grads = np.random.default_rng(world.rank).normal(size=20)
    exchange = AllReduce(world, grads)
    exchange.begin(SLICES[2])
    exchange.finish(SLICES[2])

    assert len(set(world.allgather_obj(grads[6:].tobytes().hex()))) == 1


def test_alone_nothing_happens():
    exchange = Alone()

    exchange.begin(SLICES[0])
    exchange.finish(SLICES[0])
