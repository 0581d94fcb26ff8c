"""Spans and counters of one rank."""

import threading
from pathlib import Path

import numpy as np
import pytest

from hpctrain.errors import ConfigError
from hpctrain.trace import Recorder, load

pytestmark = pytest.mark.serial


def test_events_come_back_as_plain_records_in_order():
    recorder = Recorder()
    recorder.span("comm", "allreduce", 10, 30, nbytes=4096)
    recorder.counter("loss", 0.5, 20)

    assert recorder.events() == [
        {
            "kind": "span", "lane": "comm", "name": "allreduce", "start_ns": 10, "end_ns": 30,
            "args": {"nbytes": 4096},
        },
        {"kind": "counter", "name": "loss", "value": 0.5, "t_ns": 20},
    ]  # fmt: skip


def test_a_dump_loads_to_the_same_events():
    recorder = Recorder()
    recorder.span("io", "lire é", 10**15, 10**15 + 1, shape=[3, 4], deep={"a": None})
    recorder.counter("bytes", 2**60, 5)

    data = recorder.dump()

    assert isinstance(data, bytes)
    assert load(data) == recorder.events()


def test_odd_arguments_are_kept_in_the_types_of_json():
    recorder = Recorder()
    odd = {"path": Path("a/b.h5"), "loss": float("nan"), "shape": (np.int64(3), 4)}
    recorder.span(
        "io", "read", 0, 1, scale=np.float32(0.5), table={(1, 2): [None, True]}, **odd
    )

    (span,) = load(recorder.dump())
    assert span["args"] == {
        "scale": 0.5, "table": {"(1, 2)": [None, True]}, "path": "a/b.h5", "loss": "nan",
        "shape": [3, 4],
    }  # fmt: skip
    assert load(recorder.dump()) == recorder.events()


def test_a_counter_takes_any_number():
    recorder = Recorder()
    recorder.counter("loss", np.float32(0.25), 0)

    assert load(recorder.dump())[0]["value"] == 0.25


def test_a_disabled_recorder_records_nothing():
    recorder = Recorder(enabled=False)
    recorder.span("io", "read", 0, 1)
    recorder.counter("loss", 1.0)
    with recorder.measure("main", "step"):
        pass

    assert recorder.events() == []
    assert load(recorder.dump()) == []


def test_measure_records_its_block():
    recorder = Recorder()
    with recorder.measure("main", "epoch", number=1), recorder.measure("main", "step"):
        pass

    step, epoch = recorder.events()
    assert (epoch["name"], epoch["args"]) == ("epoch", {"number": 1})
    assert epoch["start_ns"] <= step["start_ns"] <= step["end_ns"] <= epoch["end_ns"]


def test_measure_records_a_block_that_raises():
    recorder = Recorder()
    with pytest.raises(LookupError), recorder.measure("main", "step"):
        raise LookupError

    assert [event["name"] for event in recorder.events()] == ["step"]


def test_a_counter_is_taken_now_unless_told():
    recorder = Recorder()
    recorder.counter("loss", 1.0)
    recorder.counter("loss", 2.0)

    first, second = recorder.events()
    assert 0 < first["t_ns"] <= second["t_ns"]


def test_beyond_the_capacity_the_oldest_go_and_are_counted():
    recorder = Recorder(capacity=3)
    for i in range(5):
        recorder.counter("step", i, i)

    assert [event["value"] for event in recorder.events()] == [2, 3, 4]
    assert recorder.dropped == 2
    recorder.clear()
    assert (recorder.events(), recorder.dropped) == ([], 0)


def test_a_recorder_keeps_at_least_one_event():
    with pytest.raises(ConfigError, match="capacity 0"):
        Recorder(capacity=0)


def test_many_threads_record_without_loss():
    recorder = Recorder()
    threads = [
        threading.Thread(
            target=lambda lane=lane: [
                recorder.span(lane, str(i), i, i + 1) for i in range(1000)
            ]
        )
        for lane in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    events = recorder.events()
    for lane in "abcd":
        assert [int(e["name"]) for e in events if e["lane"] == lane] == list(range(1000))
    assert recorder.dropped == 0
