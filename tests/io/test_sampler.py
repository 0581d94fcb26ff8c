"""The order of an epoch: a permutation, the same for any number of ranks."""

import itertools

import numpy as np
import pytest

from hpctrain.errors import ConfigError
from hpctrain.io import Plan
from hpctrain.io.sampler import deal, epoch_order, part, stream_count

pytestmark = pytest.mark.serial

SHAPES = [(0, 1, 9), (1, 1, 9), (1000, 1, 9), (1000, 16, 100), (1003, 16, 100), (1000, 64, 10)]


@pytest.mark.parametrize(("n", "grain", "window"), SHAPES)
def test_an_order_is_a_permutation_of_seed_and_epoch(n, grain, window):
    def order(seed, epoch):
        return epoch_order(n, seed, epoch, grain, window)

    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        np.testing.assert_array_equal(np.sort(order(seed, epoch)), np.arange(n))
        np.testing.assert_array_equal(order(seed, epoch), order(seed, epoch))
    if n > 1:
        assert (order(0, 0) != order(0, 1)).any()
        assert (order(0, 0) != order(1, 0)).any()
        assert (order(0, 1) != order(1, 0)).any()


def test_a_free_order_puts_each_record_anywhere_equally_often():
    places = np.zeros((8, 8))
    for epoch in range(4000):
        places[np.arange(8), epoch_order(8, 7, epoch)] += 1

    # Each count is binomial with mean 500 and deviation 21; five deviations.
    assert abs(places - 500).max() < 105


def test_large_data_are_shuffled_in_grains_and_mixed_in_windows():
    order = epoch_order(10_000, 0, 0, grain=10, window=200)

    for start in range(0, 10_000, 200):
        grains = np.unique(order[start : start + 200] // 10)
        assert len(grains) == 20
        assert abs(np.diff(grains)).max() > 1
    first = order[:200] // 10
    assert (np.diff(first) != 0).sum() > 150


def test_a_rank_reads_its_own_share_of_large_data():
    n, grain, size = 64_000, 10, 8
    plan = Plan(n, batch=256, grain=grain, window=6400).epoch(0)

    touched = 0
    for rank in range(size):
        ids = np.concatenate([plan.batch(t, rank, size)[0] for t in range(plan.steps)])
        touched += len(np.unique(ids // grain))

    # A few grains lie on the border of two ranks' streams.
    assert touched < 1.1 * n / grain


def test_a_batch_of_large_data_mixes_many_grains():
    plan = Plan(64_000, batch=256, grain=10, window=6400).epoch(0)

    assert min(len(np.unique(plan.batch(t)[0] // 10)) for t in range(plan.steps)) > 150


def test_open_grains_fit_into_the_window():
    n, grain, window = 64_000, 100, 1600
    plan = Plan(n, batch=256, grain=grain, window=window).epoch(0)
    first, last = {}, {}
    for t in range(plan.steps):
        for number in plan.batch(t)[0] // grain:
            first.setdefault(number, t)
            last[number] = t

    open_at = [sum(first[g] <= t <= last[g] for g in first) for t in range(plan.steps)]

    assert max(open_at) * grain <= 3 * window


@pytest.mark.parametrize(
    ("n", "batch", "streams"), [(9, 4, 2), (100, 7, 7), (5, 8, 3), (64, 8, 8)]
)
def test_dealing_keeps_every_record_once(n, batch, streams):
    order = np.random.default_rng(n).permutation(n)

    np.testing.assert_array_equal(np.sort(deal(order, batch, streams)), np.arange(n))


def test_streams_depend_on_data_and_batch_only():
    assert stream_count(100, 10, 8, 1000) == 1
    assert stream_count(10**6, 256, 10, 65536) == 64
    assert stream_count(10**6, 256, 10_000, 65536) == 6
    assert stream_count(10**6, 2, 10, 65536) == 2


@pytest.mark.parametrize("records", [0, 1, 5, 7, 64])
@pytest.mark.parametrize("size", range(1, 9))
def test_parts_are_even_consecutive_and_complete(records, size):
    parts = [part(records, rank, size) for rank in range(size)]

    counts = [piece.stop - piece.start for piece in parts]
    assert max(counts) - min(counts) <= 1
    assert parts[0].start == 0
    assert parts[-1].stop == records
    assert all(a.stop == b.start for a, b in itertools.pairwise(parts))


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize(("n", "grain", "window"), SHAPES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_record_comes_once_and_batches_are_the_same_on_any_ranks(
    n, grain, window, size, shuffle
):
    plan = Plan(n, 48, seed=2, grain=grain, window=window, shuffle=shuffle).epoch(1)

    seen = []
    for step in range(plan.steps):
        pieces = [plan.batch(step, rank, size) for rank in range(size)]
        together = np.concatenate([ids for ids, _ in pieces])
        np.testing.assert_array_equal(together, plan.batch(step)[0])
        assert {total for _, total in pieces} == {len(together)}
        seen.append(together)

    np.testing.assert_array_equal(np.sort(np.concatenate([[], *seen])), np.arange(n))


def test_more_ranks_than_records_leave_some_with_none():
    ids, total = Plan(3, 8).epoch(0).batch(0, rank=4, size=5)

    assert (len(ids), total) == (0, 3)


def test_a_position_goes_on_on_another_number_of_ranks():
    plan = Plan(64, 6, seed=9)
    first = [plan.epoch(3).batch(t, r, 2)[0] for t in range(4) for r in range(2)]
    rest = [plan.epoch(3).batch(t, r, 3)[0] for t in range(4, plan.steps) for r in range(3)]

    np.testing.assert_array_equal(np.sort(np.concatenate(first + rest)), np.arange(64))


def test_numbers_out_of_range_are_refused():
    for arguments in ({"batch": 0}, {"batch": 1, "seed": -1}, {"batch": 1, "grain": 0}):
        with pytest.raises(ConfigError, match="needed at least"):
            Plan(4, **arguments)
    with pytest.raises(ConfigError, match="needed 0 to 1"):
        Plan(4, 2).epoch(0).batch(2)
    with pytest.raises(ConfigError, match="outside a group of 2 ranks"):
        part(4, 2, 2)
