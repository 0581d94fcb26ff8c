"""The Chrome trace of made-up records."""

import gzip
import itertools
import json
import random
from pathlib import Path

import pytest

from hpctrain.trace import Recorder, chrome_trace, load, write_chrome_trace

pytestmark = pytest.mark.serial


def span(lane, name, start_ns, end_ns, **args):
    recorder = Recorder()
    recorder.span(lane, name, start_ns, end_ns, **args)
    return recorder.events()[0]


def counter(name, value, t_ns):
    recorder = Recorder()
    recorder.counter(name, value, t_ns)
    return recorder.events()[0]


def rows(trace, phase):
    return [row for row in trace["traceEvents"] if row["ph"] == phase]


def titles(trace, kind):
    return {
        (row["pid"], row.get("tid")): row["args"]["name"]
        for row in rows(trace, "M")
        if row["name"] == kind
    }


def test_times_are_microseconds_on_the_clock_of_rank_0():
    events = {
        0: [span("compute", "forward", 1_000_500, 1_003_000)],
        1: [
            span("compute", "forward", 501_000_500, 501_003_000),
            counter("loss", 2.5, 501_004_000),
        ],
    }

    trace = chrome_trace(events, {0: 0, 1: 500_000_000}, {})

    first, second = rows(trace, "X")
    assert (first["ts"], first["dur"]) == (second["ts"], second["dur"]) == (1000.5, 2.5)
    (number,) = rows(trace, "C")
    assert (number["ts"], number["pid"], number["args"]) == (1004.0, 1, {"value": 2.5})


def test_a_process_is_a_rank_with_its_host():
    events = {3: [span("io", "read", 0, 1)], 0: []}

    trace = chrome_trace(events, {}, {3: "node7"})

    assert titles(trace, "process_name") == {(0, None): "rank 0", (3, None): "rank 3 @ node7"}


def test_a_thread_is_a_lane_with_the_same_number_on_every_rank():
    events = {
        0: [span("io", "read", 0, 1), span("comm", "send", 0, 1)],
        1: [span("io", "read", 0, 1), span("compute", "f", 0, 1, layer=2)],
    }

    trace = chrome_trace(events, {}, {})

    assert titles(trace, "thread_name") == {
        (0, 0): "comm", (0, 2): "io", (1, 1): "compute", (1, 2): "io",
    }  # fmt: skip
    layer = [row for row in rows(trace, "X") if row["tid"] == 1]
    assert [(row["pid"], row["name"], row["args"]) for row in layer] == [(1, "f", {"layer": 2})]


def test_nested_spans_share_a_track_and_crossing_ones_do_not():
    events = [
        span("main", "step", 0, 100_000),
        span("main", "forward", 10_000, 40_000),
        span("main", "backward", 40_000, 100_000),
        span("main", "crosses", 90_000, 120_000),
        span("main", "after", 120_000, 130_000),
    ]

    trace = chrome_trace({0: events}, {}, {})

    names = titles(trace, "thread_name")
    where = {row["name"]: names[0, row["tid"]] for row in rows(trace, "X")}
    assert where == {
        "step": "main", "forward": "main", "backward": "main",
        "crosses": "main (2)", "after": "main",
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_on_one_track_spans_lie_apart_or_inside_each_other(seed):
    rng = random.Random(seed)
    events = []
    for i in range(300):
        start = rng.randrange(10_000)
        events.append(span(rng.choice("ab"), str(i), start, start + rng.randrange(300)))

    trace = chrome_trace({0: events}, {0: -(10**15)}, {})

    tracks = {}
    for row in rows(trace, "X"):
        start, length = round(row["ts"] * 1000), round(row["dur"] * 1000)
        tracks.setdefault(row["tid"], []).append((start, start + length))
    assert sum(map(len, tracks.values())) == 300
    for spans in tracks.values():
        for (a, b), (c, d) in itertools.combinations(spans, 2):
            assert b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d)


def test_a_counter_that_is_not_finite_is_an_instant():
    trace = chrome_trace({0: [counter("loss", float("nan"), 3_000)]}, {}, {})

    (row,) = rows(trace, "i")
    assert (row["name"], row["ts"]) == ("loss = nan", 3.0)
    json.dumps(trace, allow_nan=False)


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_the_file_holds_the_trace(tmp_path, name):
    recorder = Recorder()
    recorder.span("compute", "forward", 1_000, 2_000, nodes=[1, 2])
    recorder.counter("loss", 0.25, 1_500)
    per_rank = {0: recorder.events(), 1: load(recorder.dump())}
    path = tmp_path / name
    path.write_bytes(b"what was there")

    write_chrome_trace(path, per_rank, {1: 250}, {0: "a", 1: "b"})

    data = path.read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    assert json.loads(text) == chrome_trace(per_rank, {1: 250}, {0: "a", 1: "b"})
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    path.write_text("old")

    def full(self, data):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="disk full"):
        write_chrome_trace(path, {0: []}, {}, {})

    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]
