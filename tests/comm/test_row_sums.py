"""Sums of arrays of which each rank has some rows."""

from itertools import pairwise

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain.comm.group import Group
from hpctrain.comm.rows import Rows, rows_bytes


@pytest.fixture(params=[2**31 - 1, 50], ids=["whole", "pieces"])
def rows(request):
    """Rows on a group of their own; once with messages cut into pieces of 50 bytes."""
    with Group(MPI.COMM_WORLD.Dup(), limit=request.param) as group:
        yield Rows(group)


def sample(rank, height, width, dtype, seed):
    rng = np.random.default_rng(100 * seed + rank)
    numbers = rng.permutation(height)[: rng.integers(0, height + 1)]
    table = np.zeros((height, width), dtype)
    table[numbers] = rng.normal(size=(len(numbers), width))
    return table, numbers.astype(np.int64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 3), (40, 16)])
def test_the_sum_is_that_of_whole_tables_in_rank_order(world, rows, height, width, seed, dtype):
    tables = [sample(r, height, width, dtype, seed)[0] for r in range(world.size)]
    table, numbers = sample(world.rank, height, width, dtype, seed)

    rows.allreduce(table.reshape(-1), 0, width, numbers).wait()

    expected = np.zeros((height, width), dtype)
    for other in tables:
        expected += other
    np.testing.assert_array_equal(table, expected)


@pytest.mark.parametrize("cut", [1, 3, 16], ids=["rows", "inside rows", "long units"])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 3), (40, 16)])
def test_each_rank_gets_the_bits_of_the_whole_sum_in_its_part(world, rows, height, width, cut):
    unit = width if cut == 1 else cut  # the last parts may be empty
    edges = [min(-(-height * width * r // world.size // unit) * unit, height * width)
             for r in range(world.size)] + [height * width]  # fmt: skip
    parts = list(pairwise(edges))
    for seed in range(3):
        whole, numbers = sample(world.rank, height, width, np.float32, seed)
        table = whole.copy()

        rows.allreduce(whole.reshape(-1), 0, width, numbers).wait()
        rows.reduce_scatter(table.reshape(-1), 1, width, np.sort(numbers), parts).wait()

        mine = slice(*parts[world.rank])
        np.testing.assert_array_equal(table.reshape(-1)[mine], whole.reshape(-1)[mine])


def test_rows_that_were_summed_come_back_changed(world, rows):
    height, width = 23, 5
    edges = [height * rank // world.size * width for rank in range(world.size + 1)]
    for seed in range(3):
        made = [sample(rank, height, width, np.float64, seed) for rank in range(world.size)]
        table, numbers = made[world.rank]
        gradient = sum(other for other, _ in made)
        weights = np.arange(height * width, dtype=np.float64).reshape(height, width)
        expected, flat = weights - gradient, weights.reshape(-1)

        rows.reduce_scatter(
            table.reshape(-1), 2, width, np.sort(numbers), list(pairwise(edges))
        ).wait()
        mine = slice(*edges[world.rank : world.rank + 2])
        flat[mine] -= table.reshape(-1)[mine]
        rows.allgather(flat, 2, width).wait()

        np.testing.assert_allclose(weights, expected, rtol=1e-14)
        every = world.allgather_obj(weights.tobytes().hex())
        assert len(set(every)) == 1
        untouched = sorted(set(range(height)) - set(np.concatenate([n for _, n in made])))
        before = np.arange(height * width, dtype=np.float64).reshape(height, width)
        np.testing.assert_array_equal(weights[untouched], before[untouched])


def test_several_may_be_under_way_and_end_in_any_order(world, rows):
    made = [sample(world.rank, 30, 4, np.float32, seed) for seed in range(5)]
    pending = [
        rows.allreduce(
            table.reshape(-1),
            key,
            4,
            numbers,
        )
        for key, (table, numbers) in enumerate(made)
    ]
    order = np.random.default_rng(world.rank).permutation(5)
    for key in order:
        pending[key].wait(1e-4)

    for seed, (table, _) in enumerate(made):
        parts = [sample(r, 30, 4, np.float32, seed)[0] for r in range(world.size)]
        np.testing.assert_allclose(table, sum(parts), rtol=1e-6)


def test_memory_is_used_again(world, rows):
    for _ in range(4):
        table, numbers = sample(world.rank, 30, 4, np.float32, 3)
        rows.allreduce(table.reshape(-1), 1, 4, numbers).wait()
        made = rows.pool.made

    table, numbers = sample(world.rank, 30, 4, np.float32, 3)
    rows.allreduce(table.reshape(-1), 1, 4, numbers).wait()
    assert rows.pool.made == made


def test_numbers_of_rows_need_more_than_32_bits_in_large_tables():
    assert rows_bytes(1120, 512, 4, 2) == 1120 * (2048 + 8)
    assert rows_bytes(3 * 10**9, 1, 4, 3) == 2 * 3 * 10**9 * 12
