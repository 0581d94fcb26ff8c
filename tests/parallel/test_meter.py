"""The meter, on a clock that the test moves."""

import pytest

from hpctrain.parallel import meter as module
from hpctrain.parallel.meter import Meter

pytestmark = pytest.mark.serial


@pytest.fixture
def clock(monkeypatch):
    """A function that lets time pass."""
    now = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])

    def pass_(seconds):
        now[0] += seconds

    return pass_


def test_work_is_busy_and_a_gap_is_nothing(clock):
    meter = Meter()

    meter.timed(clock, 2.0)
    clock(5.0)
    meter.timed(clock, 3.0)

    assert meter.take() == (5.0, 0.0)


def test_a_gap_that_an_exchange_fills_is_exposed(clock):
    meter = Meter()

    meter.timed(clock, 1.0)
    with meter.exchanging():
        meter.timed(clock, 2.0)
        clock(4.0)
    meter.timed(clock, 1.0)

    assert meter.take() == (4.0, 4.0)


def test_work_that_waits_is_exposed(clock):
    meter = Meter()

    meter.timed(clock, 1.0)
    meter.exposed(clock, 3.0)
    meter.timed(clock, 1.0)

    assert meter.take() == (2.0, 3.0)


def test_take_begins_anew(clock):
    meter = Meter()
    meter.timed(clock, 1.0)
    meter.take()

    assert meter.take() == (0.0, 0.0)


def test_arguments_are_handed_on_and_errors_come_through(clock):
    meter = Meter()
    seen = []

    meter.timed(seen.append, 1)
    meter.exposed(seen.append, 2)

    assert seen == [1, 2]
    with pytest.raises(KeyError):
        meter.timed({}.__getitem__, 3)
