"""Who is slow in a measurement."""

from types import SimpleNamespace

import pytest

from hpctrain.cli.pace import straggler

pytestmark = pytest.mark.serial


def sleeps(who, rank, steps):
    found = straggler(who, 0.5, SimpleNamespace(rank=rank, size=3))
    return [found(number) for number in range(steps)]


def test_one_worker_sleeps_longer():
    assert [sleeps("1:3", rank, 2) for rank in range(3)] == [[0.5] * 2, [1.5] * 2, [0.5] * 2]


def test_workers_take_turns_for_four_steps():
    assert sleeps("turn:2", 0, 13) == [1.0] * 4 + [0.5] * 8 + [1.0]
    assert sleeps("turn:2", 2, 13) == [0.5] * 8 + [1.0] * 4 + [0.5]
