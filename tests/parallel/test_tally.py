"""What a server tells of itself."""

import time
from types import SimpleNamespace

import pytest

from hpctrain.parallel.counts import Counts
from hpctrain.parallel.tally import Tally

pytestmark = pytest.mark.serial


def test_counts_are_those_since_the_last_question():
    counters = []
    recorder = SimpleNamespace(
        enabled=True, counter=lambda name, value: counters.append((name, value))
    )
    tally = Tally(2, recorder)
    for before in 0, 4, 2:
        tally.came(before)
    for index, updates in (0, 1), (1, 1), (1, 3):
        tally.late(index, updates)
    tally.skipped(5, True)
    tally.skipped(4, False)
    tally.worked(0, time.perf_counter() - 3600)

    found, empty = tally.take(), tally.take()

    assert found["busy"] > 1  # more seconds of work than have passed: of several threads
    assert (found["queue"], found["longest"]) == (2.0, 4)
    assert (found["late"], found["skipped"]) == ([(1, 2), (3, 1)], [(5, 1)])
    assert (empty["queue"], empty["longest"]) == (0.0, 0)
    assert (empty["late"], empty["skipped"]) == ([], [])
    assert counters == [
        ("queue", 0),
        ("queue", 4),
        ("queue", 2),
        *[("late", 1)] * 2,
        ("late", 3),
    ]


def test_lateness_is_updates_of_others_since_a_worker_was_told():
    counts = Counts(2, [1, 2])
    counts.start(10)
    for worker in 1, 2, 1:
        counts.count(0)
        counts.heard(0, worker)
    assert [counts.late(0, worker) for worker in (1, 2)] == [0, 1]
    assert counts.late(1, 1) == 0

    counts.begin_anew()
    assert (counts.made(0), counts.of_state(7), counts.of_state(9)) == (0, 0, 2)
    counts.count(0)
    assert counts.made(0) == 1
