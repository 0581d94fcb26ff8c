"""What only threads show: overlap, priorities, back-pressure, the end."""

import itertools
import subprocess
import sys
import threading
import time

import pytest

from hpctrain.engine import ThreadedEngine
from hpctrain.engine.task import Task
from hpctrain.errors import EngineError
from hpctrain.trace import Recorder

pytestmark = pytest.mark.serial
LIMIT_S = 60  # only a deadlock comes near it


@pytest.fixture
def opened():
    """An event that tasks wait for; set at the end, so that no engine hangs."""
    event = threading.Event()
    yield event
    event.set()


def hold(engine, event, **how):
    """Push a task that waits for ``event``, and return when it has started."""
    started = threading.Event()

    def wait():
        started.set()
        assert event.wait(LIMIT_S)

    engine.push(wait, **how)
    assert started.wait(LIMIT_S)


def test_reads_run_together():
    with ThreadedEngine(lanes={"compute": 3}) as engine:
        x = engine.variable()
        meeting = threading.Barrier(3, timeout=LIMIT_S)
        for _ in range(3):
            engine.push(meeting.wait, reads=[x])
        engine.wait_all()

        assert not meeting.broken


def test_lanes_run_together():
    with ThreadedEngine() as engine:
        meeting = threading.Barrier(4, timeout=LIMIT_S)
        for lane in ("compute", "comm", "io", "copy"):
            engine.push(meeting.wait, lane=lane)
        engine.wait_all()


def test_a_write_runs_alone():
    with ThreadedEngine(lanes={"compute": 4}) as engine:
        x = engine.variable()
        inside, most = [0, 0], [0, 0]
        lock = threading.Lock()

        def use(writes):
            with lock:
                inside[writes] += 1
                most[writes] = max(most[writes], inside[writes])
                assert inside[1] == 0 or inside == [0, 1]
            time.sleep(0)  # lets the other workers in
            with lock:
                inside[writes] -= 1

        for i in range(400):
            writes = i % 3 == 0
            engine.push(
                lambda writes=writes: use(writes),
                reads=[] if writes else [x],
                writes=[x] if writes else [],
            )
        engine.wait_all()

        assert most[1] == 1


def test_bigger_priorities_run_first_and_equals_in_push_order(opened):
    with ThreadedEngine(lanes={"comm": 1}) as engine:
        log = []
        hold(engine, opened, lane="comm")
        for i, priority in enumerate([0, 5, -1, 5, 0, 9]):
            engine.push(
                lambda i=i: log.append(i),
                lane="comm",
                priority=priority,
                writes=[engine.variable()],
            )
        opened.set()
        engine.wait_all()

        assert log == [5, 1, 3, 0, 4, 2]


def test_priority_does_not_overtake_a_dependency(opened):
    with ThreadedEngine() as engine:
        x = engine.variable()
        log = []
        hold(engine, opened)
        engine.push(lambda: log.append("low"), writes=[x], priority=-5)
        engine.push(lambda: log.append("high"), reads=[x], priority=5)
        opened.set()
        engine.wait_all()

        assert log == ["low", "high"]


def test_push_blocks_while_its_lane_is_run_ahead(opened):
    with ThreadedEngine(run_ahead=3) as engine:
        hold(engine, opened)
        pushed = []

        def push_many():
            for i in range(10):
                engine.push(lambda: None)
                pushed.append(i)

        pusher = threading.Thread(target=push_many)
        pusher.start()
        pusher.join(0.1)

        assert pusher.is_alive()
        assert pushed == [0, 1]
        assert engine.statistics().lanes["compute"].queued == 2
        engine.push(lambda: None, lane="io")  # other lanes have room
        opened.set()
        pusher.join(LIMIT_S)
        assert len(pushed) == 10


def test_tasks_push_without_blocking():
    with ThreadedEngine(run_ahead=1) as engine:
        count = []

        def grow(depth):
            count.append(depth)
            for _ in range(2 * (depth < 5)):
                engine.push(lambda: grow(depth + 1))

        engine.push(lambda: grow(0))
        engine.wait_all()

        assert len(count) == 63


def test_wait_needs_no_free_worker(opened):
    with ThreadedEngine(lanes={"compute": 1}) as engine:
        x = engine.variable()
        engine.push(lambda: None, writes=[x])
        hold(engine, opened)

        engine.wait(x)

        assert engine.statistics().running == 1
        opened.set()


def test_wait_does_not_wait_for_later_writes(opened):
    with ThreadedEngine() as engine:
        x = engine.variable()
        first = threading.Event()
        hold(engine, first, writes=[x])
        waiter = threading.Thread(target=engine.wait, args=(x,))
        waiter.start()
        while not x.waiters:
            time.sleep(0)
        engine.push(lambda: opened.wait(LIMIT_S), writes=[x])

        first.set()
        waiter.join(LIMIT_S)

        assert not waiter.is_alive()
        assert x.version == 1
        opened.set()


def test_close_finishes_what_is_pending(opened):
    engine = ThreadedEngine()
    log = []
    hold(engine, opened)
    for i in range(5):
        engine.push(lambda i=i: log.append(i))
    closer = threading.Thread(target=engine.close)
    closer.start()
    opened.set()
    closer.join(LIMIT_S)

    assert log == [0, 1, 2, 3, 4]
    assert not [thread for thread in threading.enumerate() if "hpctrain" in thread.name]


def test_an_exception_in_the_block_drops_what_has_not_started(opened):
    log = []
    with pytest.raises(LookupError), ThreadedEngine() as engine:
        x = engine.variable("x")
        hold(engine, opened, writes=[x])
        engine.push(lambda: log.append(1), writes=[x])
        threading.Timer(0.01, opened.set).start()
        raise LookupError

    assert log == []
    assert engine.statistics().queued == 1
    for wait in (lambda: engine.wait(x), engine.wait_all):
        with pytest.raises(
            EngineError, match="1 tasks will never run, because the engine was closed"
        ):
            wait()
    engine.close()


def test_a_drop_turns_away_those_who_wait_and_those_who_push(opened):
    engine = ThreadedEngine(run_ahead=2)
    x = engine.variable("x")
    errors = []
    hold(engine, opened)
    engine.push(lambda: None, writes=[x])

    def catch(call):
        try:
            call()
        except EngineError as error:
            errors.append(str(error))

    calls = [lambda: engine.wait(x), lambda: engine.push(lambda: None, name="late")]
    others = [threading.Thread(target=catch, args=(call,)) for call in calls]
    for other in others:
        other.start()
    closer = threading.Thread(target=engine.close, args=(True,))
    closer.start()
    others[1].join(LIMIT_S)
    assert others[0].is_alive()  # until what has started is done
    opened.set()
    for thread in (others[0], closer):
        thread.join(LIMIT_S)

    assert sorted(error.partition(":")[0] for error in errors) == ["engine", "engine.push"]


def test_a_push_that_was_interrupted_is_no_hang(monkeypatch):
    def interrupt(task):
        Task.enqueue(task)
        raise KeyboardInterrupt

    engine = ThreadedEngine()
    x = engine.variable()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(
            "hpctrain.engine.threaded.Task", type("Cut", (Task,), {"enqueue": interrupt})
        )
        engine.push(lambda: None, writes=[x])
    engine.push(lambda: None, reads=[x])

    for wait in (lambda: engine.wait(x), engine.wait_all, engine.close):
        with pytest.raises(
            EngineError, match=r"2 tasks will never run, .* interrupted in a push"
        ):
            wait()


def test_two_hundred_engines_start_and_stop():
    before = threading.active_count()
    for i in range(200):
        with ThreadedEngine() as engine:
            x = engine.variable()
            for _ in range(i % 4):
                engine.push(lambda: None, writes=[x])

    assert threading.active_count() == before


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "engine.wait_all()"])
def test_the_interpreter_ends_though_nobody_closed(ending):
    code = f"""
from hpctrain.engine import ThreadedEngine
engine = ThreadedEngine()
x = engine.variable()
for i in range(50):
    engine.push(lambda i=i: print(i), writes=[x], lane=["io", "compute"][i % 2])
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S
    )

    assert done.stdout.split() == [str(i) for i in range(50)]
    assert done.returncode == (3 if "3" in ending else 0)


def test_spans_of_one_worker_do_not_overlap():
    recorder = Recorder()
    with ThreadedEngine(lanes={"compute": 3, "io": 1}, recorder=recorder) as engine:
        for i in range(200):
            engine.push(lambda: sum(range(200)), lane="io" if i % 4 == 0 else "compute")

    tracks = {}
    for span in recorder.events():
        tracks.setdefault(span["lane"], []).append((span["start_ns"], span["end_ns"]))
    assert set(tracks) <= {"compute/0", "compute/1", "compute/2", "io"}
    assert sum(map(len, tracks.values())) == 200
    for spans in tracks.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
