"""The memory planner on made-up lifetimes: no arrays."""

import numpy as np
import pytest

from hpctrain.graph.memory import ALIGNMENT, Lifetime, lower_bound, place

pytestmark = pytest.mark.serial


def random_lifetimes(seed, count):
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 50, count)
    last = first + rng.integers(0, 12, count)
    sizes = rng.integers(0, 5000, count)
    return [
        Lifetime(int(n), int(a), int(b)) for n, a, b in zip(sizes, first, last, strict=True)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_storages_in_use_together_do_not_overlap(seed):
    lives = random_lifetimes(seed, 60)

    layout = place(lives)

    for i, a in enumerate(lives):
        assert layout.offsets[i] % ALIGNMENT == 0
        assert layout.offsets[i] + a.nbytes <= layout.nbytes
        for j, b in enumerate(lives[:i]):
            if a.overlaps(b) and a.nbytes and b.nbytes:
                ends = layout.offsets[i] + a.nbytes, layout.offsets[j] + b.nbytes
                assert ends[0] <= layout.offsets[j] or ends[1] <= layout.offsets[i]


@pytest.mark.parametrize("seed", range(20))
def test_the_arena_is_between_the_bound_and_the_sum(seed):
    lives = random_lifetimes(seed, 60)

    layout = place(lives)

    assert lower_bound(lives) <= layout.nbytes
    assert layout.nbytes <= sum(-(-x.nbytes // ALIGNMENT) * ALIGNMENT for x in lives)
    assert layout.nbytes <= 1.35 * lower_bound(lives)


def test_the_bound_is_the_busiest_step():
    lives = [Lifetime(64, 0, 2), Lifetime(640, 1, 1), Lifetime(128, 2, 3)]

    assert lower_bound(lives) == 64 + 640


def test_a_chain_takes_two_buffers():
    lives = [Lifetime(1024, step, step + 1) for step in range(30)]

    assert place(lives).nbytes == 2 * 1024


def test_nothing_takes_nothing():
    assert place([]).nbytes == 0
    assert lower_bound([]) == 0
