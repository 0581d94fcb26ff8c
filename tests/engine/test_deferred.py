"""Tasks that only start something, and lanes that keep the order of the pushes."""

import threading
from itertools import pairwise

import pytest

from hpctrain.engine import LaneSpec, SerialEngine, ThreadedEngine, create, threaded
from hpctrain.errors import ConfigError, EngineError
from hpctrain.trace import Recorder

pytestmark = pytest.mark.serial
LIMIT_S = 60
PAUSE_S = 1e-4


class Letter:
    """Under way until it is said to have arrived, or to be lost."""

    def __init__(self, name="", log=None):
        self.name, self.log = name, log if log is not None else []
        self.arrived, self.begun = threading.Event(), threading.Event()
        self.error = None

    def __call__(self):
        self.log.append(self.name)
        self.begun.set()
        return self

    def test(self):
        """Return whether it has arrived; raise if it is lost."""
        if self.error:
            raise self.error
        return self.arrived.is_set()


def opened(pause_s=PAUSE_S, in_flight=3, **how):
    spec = LaneSpec(ordered=True, in_flight=in_flight, pause_s=pause_s)
    return ThreadedEngine({"compute": 1, "comm": spec}, **how)


def reached(engine, variable):
    """Return an event that a task sets which reads ``variable``."""
    event = threading.Event()
    engine.push(event.set, reads=[variable])
    return event


@pytest.mark.parametrize("pause_s", [0.0, PAUSE_S])
def test_a_deferred_task_is_done_when_what_it_started_is(pause_s):
    with opened(pause_s) as engine:
        x, letter = engine.variable(), Letter()
        engine.push(letter, writes=[x], lane="comm", deferred=True)
        seen = reached(engine, x)
        assert letter.begun.wait(LIMIT_S)
        assert [lane for lane, _, _ in engine.running()] == ["comm"]
        assert not seen.is_set()
        letter.arrived.set()
        assert seen.wait(LIMIT_S)


def test_those_under_way_end_in_any_order():
    with opened() as engine:
        log, letters, seen = [], [], []
        for name in "abc":
            letters.append(Letter(name, log))
            x = engine.variable()
            engine.push(letters[-1], writes=[x], lane="comm", deferred=True)
            seen.append(reached(engine, x))
        for i in (2, 0, 1):
            letters[i].arrived.set()
            assert seen[i].wait(LIMIT_S)

        assert log == ["a", "b", "c"]


def test_no_more_are_started_than_may_be_in_flight():
    with opened(in_flight=2) as engine:
        log = []
        letters = [Letter(i, log) for i in range(5)]
        for letter in letters:
            engine.push(letter, lane="comm", deferred=True)
        counts = []
        for letter in letters:
            letter.log = log
            counts.append(engine.statistics().lanes["comm"].running <= 2)
            letter.arrived.set()
        engine.wait_all()

        assert all(counts)
        assert log == [0, 1, 2, 3, 4]


def test_an_ordered_lane_waits_for_the_next_in_turn():
    with opened() as engine:
        x, gate, log = engine.variable(), threading.Event(), []
        engine.push(lambda: gate.wait(LIMIT_S), writes=[x])
        engine.push(lambda: log.append("first"), writes=[x], lane="comm")
        engine.push(lambda: log.append("second"), lane="comm", priority=9)
        assert log == []
        gate.set()
        engine.wait_all()

        assert log == ["first", "second"]


@pytest.mark.parametrize("make", [opened, SerialEngine])
def test_a_failure_while_under_way_reaches_who_waits(make):
    with make() as engine:
        x, letter = engine.variable(), Letter()
        letter.error = ValueError("lost")
        engine.push(letter, writes=[x], lane="comm", deferred=True, name="post")
        with pytest.raises(EngineError, match=r"post .*lost"):
            engine.wait(x)


def test_a_deferred_task_with_nothing_left_to_do_returns_none():
    for engine in (opened(), SerialEngine()):
        x = engine.variable()
        engine.push(lambda: None, writes=[x], lane="comm", deferred=True)
        engine.wait(x)
        engine.close()


def test_closing_waits_for_what_is_under_way():
    engine, letter = opened(), Letter()
    engine.push(letter, lane="comm", deferred=True)
    timer = threading.Timer(0.01, letter.arrived.set)
    timer.start()
    engine.close()
    assert letter.arrived.is_set()
    timer.join()


def test_spans_of_deferred_tasks_do_not_overlap_on_a_track():
    recorder = Recorder()
    with opened(recorder=recorder) as engine:
        letters = [Letter(i) for i in range(3)]
        for letter in letters:
            engine.push(letter, lane="comm", deferred=True)
        for letter in letters:
            letter.arrived.set()
        engine.wait_all()
    spans = sorted((e["lane"], e["start_ns"], e["end_ns"]) for e in recorder.events())

    assert len(spans) == 3
    for (track, _, end), (other, start, _) in pairwise(spans):
        assert track != other or start >= end


@pytest.mark.parametrize(
    ("spec", "words"),
    [(LaneSpec(workers=2, ordered=True), "ordered"), (LaneSpec(in_flight=0), "in flight")],
)
def test_impossible_lanes_are_refused(spec, words):
    with pytest.raises(ConfigError, match=words):
        create("threaded", {"comm": spec})


def test_what_is_under_way_is_left_behind_by_a_drop():
    """It may wait for a process that has dropped its own part: for ever."""
    engine, letter = opened(), Letter()
    x = engine.variable()
    engine.push(letter, writes=[x], lane="comm", deferred=True)
    assert letter.begun.wait(LIMIT_S)

    engine.close(drop=True)

    assert engine.running() == []


def blocking(block, **how):
    return ThreadedEngine({"compute": 1, "comm": LaneSpec(ordered=True, block=block, **how)})


def test_a_lane_that_blocks_is_asked_once_there_is_nothing_else_to_start():
    asked, gate = [], threading.Event()

    def block(pending):
        asked.append([letter.name for letter in pending])
        pending[-1].arrived.set()
        return True

    with blocking(block, in_flight=2) as engine:
        x = engine.variable()
        engine.push(lambda: gate.wait(LIMIT_S), writes=[x])
        for i in range(4):
            engine.push(Letter(i), reads=[x], lane="comm", deferred=True)
        gate.set()
        engine.wait_all()

    assert asked == [[0, 1], [0, 2], [0, 3], [0]]


def test_a_lane_whose_pendings_cannot_be_waited_for_looks_again():
    letter, looks = Letter(), []

    def block(pending):
        looks.append(pending)
        if len(looks) == 3:
            letter.arrived.set()
        return False

    with blocking(block, pause_s=PAUSE_S) as engine:
        engine.push(letter, lane="comm", deferred=True)
        engine.wait_all()

    assert looks == [[letter]] * 3


def test_a_worker_that_waits_for_ever_does_not_hold_up_a_drop(monkeypatch):
    monkeypatch.setattr(threaded, "GRACE_S", 0.01)
    inside, never = threading.Event(), threading.Event()

    def block(pending):
        inside.set()
        return never.wait(LIMIT_S)

    engine = blocking(block)
    engine.push(Letter(), lane="comm", deferred=True)
    assert inside.wait(LIMIT_S)

    engine.close(drop=True)

    assert engine.running() == []
    never.set()


def test_a_task_that_waits_for_ever_does_not_hold_up_a_drop(monkeypatch):
    """As a kernel that waits for another rank, which has dropped its part."""
    monkeypatch.setattr(threaded, "GRACE_S", 0.01)
    begun, never = threading.Event(), threading.Event()

    def task():
        begun.set()
        never.wait(LIMIT_S)

    engine = ThreadedEngine({"compute": 1})
    engine.push(task)
    engine.push(task)
    assert begun.wait(LIMIT_S)

    engine.close(drop=True)

    assert [name for _, name, _ in engine.running()] == [task.__qualname__]
    never.set()


class Counted(Letter):
    """Counts how often it is looked at, and arrives after ``most`` looks."""

    def __init__(self, most=0):
        super().__init__()
        self.looks, self.most = 0, most

    def test(self):
        """Count a look."""
        self.looks += 1
        return self.looks == self.most or super().test()


def test_a_patient_lane_hardly_looks_while_others_work_and_at_once_when_they_wait():
    hour = LaneSpec(in_flight=2, pause_s=PAUSE_S, beside="compute", patience_s=3600.0)
    lanes = {"compute": 1, "wire": hour, "comm": LaneSpec(pause_s=PAUSE_S)}
    with ThreadedEngine(lanes) as engine:
        x, y, letter, clock, begun, go = (
            engine.variable(), engine.variable(), Counted(), Counted(100),
            threading.Event(), threading.Event(),
        )  # fmt: skip

        def work():
            begun.set()
            assert go.wait(LIMIT_S)

        engine.push(work)
        assert begun.wait(LIMIT_S)
        engine.push(letter, writes=[x], lane="wire", deferred=True)
        assert letter.begun.wait(LIMIT_S)
        engine.push(clock, writes=[y], lane="comm", deferred=True)
        engine.wait(y)
        busy = letter.looks
        letter.arrived.set()
        seen = reached(engine, x)
        go.set()

        assert busy <= 2
        assert seen.wait(LIMIT_S)
