"""What only the serial engine does."""

import pytest

from hpctrain.engine import SerialEngine

pytestmark = pytest.mark.serial


def test_a_task_has_run_when_push_returns():
    with SerialEngine() as engine:
        log = []
        engine.push(lambda: log.append(1), lane="comm")
        assert log == [1]


def test_push_raises_nothing():
    engine = SerialEngine()
    engine.push(lambda: 1 / 0, name="divide")

    assert engine.statistics().failures == 1
    engine.close(drop=True)


def test_pushes_of_tasks_run_in_push_order_after_them():
    with SerialEngine() as engine:
        log = []

        def grow(depth):
            log.append(depth)
            if depth < 3:
                engine.push(lambda: grow(depth + 1))
                engine.push(lambda: grow(depth + 1))

        engine.push(lambda: grow(0))

        assert log == [0] + [1] * 2 + [2] * 4 + [3] * 8
