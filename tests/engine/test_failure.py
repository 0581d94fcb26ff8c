"""How exceptions travel, the same on both engines."""

import gc
import re
import sys
import weakref

import pytest

from hpctrain.engine import create
from hpctrain.errors import EngineError

pytestmark = pytest.mark.serial


def boom():
    raise ValueError("boom")


def line():
    return sys._getframe(1).f_lineno


def test_a_failure_is_raised_at_the_wait_with_name_and_place(engine):
    x = engine.variable("x")
    engine.push(boom, writes=[x], name="update")
    pushed_at = line() - 1

    with pytest.raises(EngineError) as caught:
        engine.wait(x)

    assert str(caught.value) == f"update (pushed at {__file__}:{pushed_at}): boom"
    assert type(caught.value.__cause__) is ValueError


def test_a_prepared_operation_names_the_place_that_prepared_it(engine):
    x = engine.variable()
    operation = engine.operation(boom, (), [x])
    prepared_at = line() - 1
    engine.push_operation(operation)

    with pytest.raises(EngineError, match=rf"^boom \(pushed at .*:{prepared_at}\): boom$"):
        engine.wait(x)


def test_a_failure_is_raised_once(engine):
    x = engine.variable()
    engine.push(boom, writes=[x])
    with pytest.raises(EngineError):
        engine.wait(x)

    engine.wait(x)
    engine.wait_all()


def test_later_tasks_are_skipped_and_pass_the_failure_on(engine):
    x, y, z = (engine.variable(name) for name in "xyz")
    ran = []
    engine.push(boom, writes=[x], name="first")
    engine.push(lambda: ran.append("y"), reads=[x], writes=[y])
    engine.push(lambda: ran.append("z"), reads=[y], writes=[z])
    engine.push(lambda: ran.append("x"), writes=[x])

    with pytest.raises(EngineError, match=r"^first"):
        engine.wait(z)
    engine.wait_all()
    assert ran == []
    assert engine.statistics().lanes["compute"].skipped == 3


def test_tasks_without_a_poisoned_variable_run(engine):
    x, y = engine.variable(), engine.variable()
    ran = []
    engine.push(boom, writes=[x])
    engine.push(lambda: ran.append("y"), writes=[y])

    engine.wait(y)

    assert ran == ["y"]


def test_siblings_of_a_raised_failure_are_silent_and_usable(engine):
    x, y, z = (engine.variable(name) for name in "xyz")
    ran = []
    engine.push(boom, writes=[x, y])
    engine.push(lambda: None, reads=[y], writes=[z])
    with pytest.raises(EngineError):
        engine.wait(x)

    engine.wait(y)
    engine.wait(z)
    engine.push(lambda: ran.append("read"), reads=[x, y, z])
    engine.wait_all()
    assert ran == ["read"]


def test_what_was_pushed_before_the_raise_is_skipped_however_late_it_runs(engine, gate):
    x, y, z, late = (engine.variable(name) for name in ("x", "y", "z", "late"))
    ran = []
    engine.push(boom, writes=[x])
    engine.push(gate.pass_through, writes=[late], lane="io")
    engine.push(lambda: ran.append("y"), reads=[x, late], writes=[y])
    engine.push(lambda: ran.append("z"), reads=[y], writes=[z])
    with pytest.raises(EngineError):
        engine.wait(x)
    engine.push(lambda: ran.append("after"), reads=[z])

    gate.open()
    engine.wait_all()

    assert ran == ["after"]


def test_the_next_write_clears(engine):
    x = engine.variable()
    values = []
    engine.push(boom, writes=[x])
    with pytest.raises(EngineError):
        engine.wait(x)

    engine.push(lambda: values.append(1), writes=[x])
    engine.push(lambda: values.append(2), reads=[x])
    engine.wait_all()

    assert values == [1, 2]
    assert x.failure is None


def test_wait_all_raises_the_first_failure_by_push_order_and_forgets_the_rest(engine, gate):
    x, y = engine.variable(), engine.variable()

    def slow_boom():
        gate.pass_through()
        raise ValueError("slow")

    engine.push(slow_boom, writes=[x], lane="io", name="first")
    engine.push(boom, writes=[y], name="second")
    engine.push(boom, name="third")
    gate.open()

    with pytest.raises(EngineError, match=r"^first .*slow"):
        engine.wait_all()
    engine.wait_all()
    engine.wait(y)


def test_two_failures_are_raised_one_at_each_variable(engine):
    x, y = engine.variable(), engine.variable()
    engine.push(boom, writes=[x], name="one")
    engine.push(boom, writes=[y], name="two")

    with pytest.raises(EngineError, match=r"^two"):
        engine.wait(y)
    with pytest.raises(EngineError, match=r"^one"):
        engine.wait(x)


def test_a_task_with_two_poisoned_variables_passes_on_the_older_failure(engine):
    x, y, z = (engine.variable() for _ in range(3))
    engine.push(boom, writes=[x], name="one")
    engine.push(boom, writes=[y], name="two")
    engine.push(lambda: None, reads=[y, x], writes=[z])

    with pytest.raises(EngineError, match=r"^one"):
        engine.wait(z)
    with pytest.raises(EngineError, match=r"^two"):
        engine.wait_all()


def test_a_failure_without_writes_is_raised_by_wait_all(engine):
    x = engine.variable()
    engine.push(boom, reads=[x], name="probe")

    engine.wait(x)
    with pytest.raises(EngineError, match=r"^probe"):
        engine.wait_all()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_and_exits_are_carried_too(engine, kind):
    x = engine.variable()

    def leave():
        raise kind

    engine.push(leave, writes=[x], name="leave")

    with pytest.raises(EngineError, match=kind.__name__) as caught:
        engine.wait(x)
    assert type(caught.value.__cause__) is kind


def test_a_bare_key_in_the_message_is_shown_with_its_type(engine):
    engine.push(lambda: {}["weight"], name="look up")

    with pytest.raises(EngineError, match=re.escape("KeyError('weight')")):
        engine.wait_all()


def test_failed_and_skipped_writes_count_as_versions(engine):
    x = engine.variable()
    engine.push(boom, writes=[x])
    engine.push(lambda: None, writes=[x])

    with pytest.raises(EngineError):
        engine.wait(x)

    assert x.version == 2


def test_a_raised_failure_lets_its_arrays_go(engine):
    class Array:
        """Stands for memory that the frames of the exception hold."""

    seen = []

    def fail():
        array = Array()
        seen.append(weakref.ref(array))
        raise ValueError("boom")

    x = engine.variable()
    engine.push(fail, writes=[x])
    try:
        engine.wait(x)
    except EngineError as error:
        assert error.__cause__ is not None
    gc.collect()

    assert seen[0]() is None


@pytest.mark.parametrize("kind", ["threaded", "serial"])
def test_close_raises_what_nobody_has_been_told(kind):
    engine = create(kind)
    engine.push(boom, name="last")

    with pytest.raises(EngineError, match=r"^last"):
        engine.close()
    engine.close()


@pytest.mark.parametrize("kind", ["threaded", "serial"])
def test_an_exception_in_the_block_is_not_masked_by_a_failure(kind):
    with pytest.raises(LookupError), create(kind) as engine:
        engine.push(boom)
        raise LookupError


@pytest.mark.parametrize("kind", ["threaded", "serial"])
def test_on_failure_is_called_at_once_with_name_and_cause(kind):
    told = []
    with create(kind, on_failure=told.append) as engine:
        x = engine.variable()
        engine.push(boom, writes=[x], name="send")
        engine.push(lambda: None, writes=[x])
        with pytest.raises(EngineError) as caught:
            engine.wait(x)

    assert told == [caught.value]
    assert type(told[0].__cause__) is ValueError


@pytest.mark.parametrize("kind", ["threaded", "serial"])
def test_a_failing_on_failure_is_noted_and_harms_nobody(kind):
    def bad(error):
        raise RuntimeError("no abort")

    with create(kind, on_failure=bad) as engine:
        engine.push(boom)
        with pytest.raises(EngineError, match="boom") as caught:
            engine.wait_all()

    assert caught.value.__notes__ == ["on_failure raised RuntimeError('no abort')"]
