"""The priority queue of a lane and its counts."""

import random

import pytest

from hpctrain.engine.lanes import Lane, LaneSpec, LaneStatistics
from hpctrain.engine.task import Operation, Task

pytestmark = pytest.mark.serial


def make(priority, order):
    operation = Operation(lambda: None, (), (), "compute", priority, "", ("", 0), None)
    return Task(operation, order)


def test_bigger_priorities_come_first_and_equals_in_push_order():
    rng = random.Random(3)
    tasks = [make(rng.randrange(-3, 4), order) for order in range(200)]
    lane = Lane("compute", 1)
    for task in rng.sample(tasks, len(tasks)):
        lane.offer(task)

    taken = [lane.take() for _ in tasks]

    assert taken == sorted(tasks, key=lambda task: (-task.operation.priority, task.order))
    assert not lane


def test_counts_follow_a_task_from_push_to_end():
    lane = Lane("compute", 2)
    lane.pending += 3
    for order in range(2):
        lane.offer(make(0, order))
    assert lane.statistics() == LaneStatistics(2, 3, 2, 0, 0, 0)

    first = lane.take()
    assert lane.statistics() == LaneStatistics(2, 2, 1, 1, 0, 0)
    lane.settle(first, skipped=False)
    lane.settle(lane.take(), skipped=True)
    assert lane.statistics() == LaneStatistics(2, 1, 0, 0, 2, 1)


def test_an_ordered_lane_gives_tasks_in_push_order_only():
    lane, tasks = Lane("comm", LaneSpec(ordered=True)), [make(0, 0), make(9, 1), make(5, 2)]
    for task in tasks:
        lane.add(task)
    lane.offer(tasks[1])
    lane.offer(tasks[2])
    assert not lane

    lane.offer(tasks[0])
    assert [lane.take() for _ in tasks] == tasks


def test_each_worker_has_a_track_of_its_own():
    assert Lane("comm", 1).tracks() == ["comm"]
    assert Lane("io", 3).tracks() == ["io/0", "io/1", "io/2"]
