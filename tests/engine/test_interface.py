"""What both engines do alike, failures apart."""

import functools
import weakref

import pytest

from hpctrain.engine import SerialEngine, ThreadedEngine, create
from hpctrain.errors import ConfigError, EngineError
from hpctrain.trace import Recorder

pytestmark = pytest.mark.serial
KINDS = ["threaded", "serial"]


def nothing():
    pass


def test_create_makes_engines_by_name():
    with create() as threaded, create("serial", lanes={"compute": 2}) as serial:
        assert type(threaded) is ThreadedEngine
        assert type(serial) is SerialEngine


def test_an_unknown_kind_is_a_configuration_error():
    with pytest.raises(ConfigError, match="got kind 'naive', needed threaded or serial"):
        create("naive")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lanes", [{}, {"compute": 0}])
def test_a_lane_needs_a_worker_and_an_engine_a_lane(kind, lanes):
    with pytest.raises(ConfigError, match="needed at least"):
        create(kind, lanes=lanes)


def test_run_ahead_is_at_least_one():
    with pytest.raises(ConfigError, match="run_ahead 0"):
        ThreadedEngine(run_ahead=0)


def test_tasks_run_with_what_their_reads_hold(engine):
    x, y = engine.variable("x"), engine.variable("y")
    data = {}
    engine.push(lambda: data.update(x=2), writes=[x], lane="io")
    engine.push(lambda: data.update(y=data["x"] * 3), reads=[x], writes=[y], lane="compute")
    engine.push(lambda: data.update(x=data["y"] + 1), reads=[y], writes=[x], lane="comm")

    engine.wait(x)

    assert data == {"x": 7, "y": 6}


def test_versions_count_writes(engine):
    x, y = engine.variable("x"), engine.variable("y")
    assert x.version == 0
    for _ in range(5):
        engine.push(nothing, reads=[y], writes=[x])
    engine.wait(x)

    assert (x.version, y.version) == (5, 0)
    assert x.name == "x"


def test_a_variable_in_reads_and_writes_is_one_write(engine):
    x = engine.variable()
    operation = engine.operation(nothing, [x, x], (v for v in [x, x]))

    assert (operation.reads, operation.writes) == ((), (x,))
    engine.push_operation(operation)
    engine.wait(x)
    assert x.version == 1


def test_repeated_reads_are_one(engine):
    x, y = engine.variable(), engine.variable()

    assert engine.operation(nothing, [x, y, x]).reads == (x, y)


def test_an_operation_can_be_pushed_many_times_before_it_has_run(engine, gate):
    x = engine.variable()
    count = []
    operation = engine.operation(lambda: count.append(1), writes=[x])
    engine.push(gate.pass_through, writes=[x])
    for _ in range(20):
        engine.push_operation(operation)
    gate.open()
    engine.wait(x)

    assert len(count) == 20
    assert x.version == 21


def test_an_unknown_lane_is_refused_with_the_known_ones(engine):
    with pytest.raises(EngineError, match="lane 'gpu' is unknown, needed one of compute, comm"):
        engine.push(nothing, lane="gpu")


@pytest.mark.parametrize("kind", KINDS)
def test_what_belongs_to_another_engine_is_refused(engine, kind):
    with create(kind) as other:
        x = other.variable("x")
        calls = [
            lambda: engine.push(nothing, reads=[x]),
            lambda: engine.push(nothing, writes=[x]),
            lambda: engine.wait(x),
            lambda: engine.push_operation(other.operation(nothing)),
        ]

        for call in calls:
            with pytest.raises(EngineError, match="belongs to another engine"):
                call()


def test_waiting_for_what_nobody_writes_returns(engine):
    engine.wait(engine.variable())
    engine.wait_all()


@pytest.mark.parametrize("call", ["wait", "wait_all", "close"])
def test_a_task_that_waits_gets_an_error_and_no_deadlock(engine, call):
    x = engine.variable("x")
    args = (x,) if call == "wait" else ()
    engine.push(lambda: getattr(engine, call)(*args), writes=[x], name="greedy")

    with pytest.raises(EngineError, match=rf"^greedy .* engine\.{call}: called inside"):
        engine.wait(x)


def test_a_task_of_one_engine_may_wait_for_another(engine):
    with create("threaded") as other:
        y = other.variable()
        done = []
        other.push(lambda: done.append(1), writes=[y])
        engine.push(lambda: other.wait(y))
        engine.wait_all()

        assert done == [1]


def test_what_a_task_pushes_runs_after_it(engine):
    x = engine.variable()
    log = []

    def outer():
        engine.push(lambda: log.append("inner"), writes=[x])
        log.append("outer")

    engine.push(outer, writes=[x])
    engine.wait_all()

    assert log == ["outer", "inner"]


@pytest.mark.parametrize("kind", KINDS)
def test_push_after_close_is_refused(kind):
    engine = create(kind)
    engine.close()

    with pytest.raises(EngineError, match="nothing came after close"):
        engine.push(nothing)


def test_statistics_count_per_lane(engine):
    for lane, number in [("compute", 3), ("io", 2)]:
        for _ in range(number):
            engine.push(nothing, lane=lane)
    engine.wait_all()

    counts = engine.statistics()
    assert {name: lane.done for name, lane in counts.lanes.items()} == {
        "compute": 3, "comm": 0, "io": 2, "copy": 0,
    }  # fmt: skip
    assert (counts.queued, counts.running, counts.done, counts.failures) == (0, 0, 5, 0)


def test_a_done_task_lets_go_of_what_it_captured(engine):
    class Array:
        """Stands for memory that a task holds."""

    array = Array()
    seen = weakref.ref(array)
    engine.push(functools.partial(id, array), writes=[engine.variable()])
    del array
    engine.wait_all()

    assert seen() is None


def test_the_label_is_the_name_or_that_of_the_function(engine):
    assert engine.operation(nothing, name="update").label == "update"
    assert engine.operation(nothing).label == "nothing"
    assert engine.operation(functools.partial(nothing)).label == "partial"


@pytest.mark.parametrize("kind", KINDS)
def test_each_task_is_a_span_while_the_recorder_is_enabled(kind):
    recorder = Recorder()
    with create(kind, recorder=recorder) as engine:
        engine.push(nothing, name="load", lane="io")
        engine.wait_all()
        recorder.enabled = False
        engine.push(nothing, name="unseen")
        engine.wait_all()

    (span,) = recorder.events()
    assert (span["lane"], span["name"]) == ("io", "load")
    assert 0 < span["start_ns"] <= span["end_ns"]
