"""The board on which threads write what they do."""

import threading

import pytest

from hpctrain.trace import Activity

pytestmark = pytest.mark.serial


def test_things_are_on_the_board_while_they_are_done():
    activity = Activity()

    with activity.doing("saving"):
        with activity.doing("writing a file"):
            inside = activity.now()
        after = activity.now()

    assert [doing.what for doing in inside] == ["saving", "writing a file"]
    assert inside[0].seconds >= inside[1].seconds >= 0
    assert [doing.what for doing in after] == ["saving"]
    assert activity.now() == []


def test_an_exception_takes_what_was_done_off_the_board():
    activity = Activity()

    with pytest.raises(OSError, match="disk full"), activity.doing("saving"):
        raise OSError("disk full")

    assert activity.now() == []


def test_a_description_that_is_a_function_is_made_only_for_who_asks():
    activity, asked = Activity(), []

    def describe():
        asked.append(True)
        return "reading 512 records"

    with activity.doing(describe):
        pass
    assert not asked
    with activity.doing(describe):
        assert activity.now()[0].what == "reading 512 records"


def test_threads_share_a_board_by_name():
    activity = Activity()
    begun, end = threading.Event(), threading.Event()

    def read():
        with activity.doing("reading"):
            begun.set()
            end.wait(10)

    thread = threading.Thread(target=read, name="lane-io")
    thread.start()
    begun.wait(10)
    with activity.doing("waiting"):
        seen = [(doing.thread, doing.what) for doing in activity.now()]
    end.set()
    thread.join()

    assert seen == [("lane-io", "reading"), (threading.current_thread().name, "waiting")]
