import json
import sys
import time

import pytest
from mpi4py import MPI

from hpctrain.comm.group import Group
from hpctrain.comm.progress import (
    CONTROL,
    GRADIENT,
    INSIDE,
    Log,
    State,
    Wait,
    collective,
    place,
)

pytestmark = pytest.mark.serial


def test_the_oldest_exchange_is_the_one_that_was_started_first():
    log = Log()
    log.posted(7, "slice 8")
    log.posted(2, "slice 3")
    log.completed(7)
    log.posted(4, "slice 5")

    oldest = log.oldest()

    assert (oldest.sequence, oldest.number, oldest.name) == (GRADIENT, 2, "step 1, slice 3")
    assert oldest.seconds >= 0
    assert log.started == 3


def test_only_what_somebody_waits_for_has_an_age():
    log = Log()
    log.posted(1, "slice 2", waits=False)
    log.posted(0, "slice 1", waits=False)
    assert log.oldest() is None
    assert log.busy() == 1

    log.waiting(0)

    assert (log.oldest().number, log.busy()) == (2, 1)
    log.completed(1)
    assert (log.oldest().number, log.busy()) == (2, None)


def test_a_log_without_open_exchanges_waits_for_nothing():
    log = Log()
    log.completed(5)
    assert log.oldest() is None
    log.posted(5, "slice 6")
    log.completed(5)
    assert log.oldest() is None


def test_steps_are_counted_on_from_where_training_went_on():
    log = Log()
    log.first_step = 400
    for _ in range(12):
        log.completed(3)
        log.posted(3, "slice 4")

    assert log.oldest().name == "step 412, slice 4"


def test_what_a_step_waits_for_inside_is_counted_by_messages():
    log = Log(INSIDE)
    log.posted(0, "statistics")
    log.completed(0)
    log.posted(0, "statistics")

    wait = log.oldest()

    assert (wait.sequence, wait.number, wait.name) == (INSIDE, 2, "message 2, statistics")


def test_time_in_which_the_process_was_stopped_is_not_waited():
    log = Log()
    log.posted(0, "slice 1")

    assert log.oldest(time.monotonic() + 100).seconds < -99


def test_a_state_survives_the_way_through_json():
    waits = [Wait(GRADIENT, 3, "step 1, slice 3", 61.5)]
    busy, told = {GRADIENT: 3}, {GRADIENT: 2}
    state = State({GRADIENT: 3, CONTROL: 9}, waits, busy, told, ["lane io: read for 3 s"])

    assert State.of(json.loads(json.dumps(state.plain()))) == state


def test_a_place_names_the_function_that_waits_and_no_library(tmp_path):
    code = compile("def wait(fn):\n    return fn()\n", f"{tmp_path}/mine.py", "exec")
    scope = {}
    eval(code, scope)

    text = place(
        scope["wait"](lambda: json.loads("[1]", parse_int=lambda _: sys._getframe()))[0]
    )

    assert text.startswith(f"{__file__}:")
    assert f" < {tmp_path}/mine.py:2 wait" in text
    assert "json" not in text


def test_a_thread_outside_collectives_is_in_none():
    assert collective(sys._getframe()) == ""
    assert collective(None) == ""


def test_collectives_of_other_groups_do_not_count_where_one_is_named(monkeypatch):
    found = []
    with Group(MPI.COMM_SELF.Dup()) as group, Group(MPI.COMM_SELF.Dup()) as other:

        def look(*_):
            frame = sys._getframe()
            found.extend(collective(frame, each) for each in (None, group, other))

        monkeypatch.setattr(group, "_agree", look)
        group.size = 2
        group.barrier()

    assert found[0].startswith("barrier at ")
    assert found[1:] == [found[0], ""]
