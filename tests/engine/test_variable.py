"""The dependency rule alone, without threads."""

import random

import pytest

from hpctrain.engine.variable import Variable

pytestmark = pytest.mark.serial


def test_reads_with_no_write_before_them_are_granted_at_once():
    variable = Variable("v")

    assert [variable.append_read(task) for task in "abc"] == [True, True, True]
    assert variable.readers == 3


def test_a_write_waits_for_all_reads_before_it():
    variable = Variable("v")
    variable.append_read("a")
    variable.append_read("b")

    assert not variable.append_write("c")
    assert list(variable.complete_read()) == []
    assert list(variable.complete_read()) == ["c"]
    assert variable.writing


def test_a_read_behind_a_waiting_write_does_not_overtake_it():
    variable = Variable("v")
    variable.append_read("a")
    variable.append_write("b")

    assert not variable.append_read("c")
    assert list(variable.complete_read()) == ["b"]
    assert list(variable.complete_write()) == ["c"]


def test_a_done_write_grants_all_reads_up_to_the_next_write():
    variable = Variable("v")
    variable.append_write("a")
    for task in "bc":
        variable.append_read(task)
    variable.append_write("d")
    variable.append_read("e")

    assert list(variable.complete_write()) == ["b", "c"]
    assert list(variable.complete_read()) == []
    assert list(variable.complete_read()) == ["d"]
    assert list(variable.complete_write()) == ["e"]


def test_writes_bump_the_version_when_they_are_done_and_reads_do_not():
    variable = Variable("v")
    variable.append_write("a")
    variable.append_write("b")
    assert (variable.version, variable.writes) == (0, 2)

    variable.complete_write()
    assert variable.version == 1
    variable.complete_write()
    variable.append_read("c")
    variable.complete_read()
    assert (variable.version, variable.writes) == (2, 2)


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_completion_keeps_the_rule(seed):
    rng = random.Random(seed)
    uses = [rng.random() < 0.4 for _ in range(300)]  # whether it writes
    variable = Variable("v")
    running, started = [], []

    def start(tasks):
        running.extend(tasks)
        started.extend(tasks)
        writers = [task for task in running if uses[task]]
        assert not writers or len(running) == 1

    for task, writes in enumerate(uses):
        granted = variable.append_write(task) if writes else variable.append_read(task)
        start([task] if granted else [])
        while running and rng.random() < 0.45:
            done = running.pop(rng.randrange(len(running)))
            start(variable.complete_write() if uses[done] else variable.complete_read())
    while running:
        done = running.pop(rng.randrange(len(running)))
        start(variable.complete_write() if uses[done] else variable.complete_read())

    assert started == list(range(300))
    assert variable.version == sum(uses)
