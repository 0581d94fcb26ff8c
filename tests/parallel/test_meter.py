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


class Letter:
    """Something that has arrived."""

    def test(self):
        return True


def taken(meter):
    busy, exposed = meter.take()
    return busy, exposed.sum()


def test_work_is_busy_and_a_gap_is_nothing(clock):
    meter = Meter(2)

    meter.timed(None, clock, 2.0)
    clock(5.0)
    meter.timed(None, clock, 3.0)

    assert taken(meter) == (5.0, 0.0)


def test_a_gap_that_an_exchange_fills_is_exposed(clock):
    meter = Meter(2)

    meter.timed(None, clock, 1.0)
    under_way = meter.under_way(Letter())
    meter.timed(None, clock, 2.0)
    clock(4.0)
    assert under_way.test()
    meter.timed(1, clock, 1.0)

    assert taken(meter) == (4.0, 4.0)


def test_work_that_waits_is_exposed(clock):
    meter = Meter(2)

    meter.timed(None, clock, 1.0)
    meter.exposed(1, clock, 3.0)
    meter.timed(None, clock, 1.0)

    assert taken(meter) == (2.0, 3.0)


def test_take_begins_anew(clock):
    meter = Meter(2)
    meter.timed(None, clock, 1.0)
    meter.take()

    assert taken(meter) == (0.0, 0.0)


def test_arguments_are_handed_on_and_errors_come_through(clock):
    meter = Meter(2)
    seen = []

    meter.timed(None, seen.append, 1)
    meter.exposed(0, seen.append, 2)

    assert seen == [1, 2]
    with pytest.raises(KeyError):
        meter.timed(None, {}.__getitem__, 3)


def test_a_gap_belongs_to_the_slice_that_ends_it(clock):
    meter = Meter(3)

    meter.under_way(Letter())
    for index in (2, 0, None):
        clock(1.0 + (index or 0))
        meter.timed(index, clock, 5.0)

    assert meter.take()[1].tolist() == [1.0, 0.0, 3.0, 1.0]


def test_segments_are_timed_apart(clock):
    meter = Meter(1)

    for seconds in (1.0, 3.0):
        meter.segment(4, clock, seconds)

    assert meter.seconds == {4: [4.0, 2]}


def test_an_exchange_that_begins_and_ends_in_a_gap_is_exposed(clock):
    meter = Meter(2)

    meter.timed(None, clock, 1.0)
    clock(3.0)
    assert meter.under_way(Letter()).test()
    meter.timed(0, clock, 1.0)
    clock(5.0)
    meter.timed(1, clock, 1.0)

    assert meter.take()[1].tolist() == [3.0, 0.0, 0.0]
