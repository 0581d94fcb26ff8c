import re
import signal
import socket
import time

import psutil
import pytest

from hpctrain.comm.guard import agreed, exit_code
from hpctrain.comm.last_words import plain
from hpctrain.errors import (
    CheckpointError,
    CommError,
    ConfigError,
    DataError,
    EngineError,
    RangeError,
    ShapeError,
)

serial = pytest.mark.serial
slow = pytest.mark.slow
HOST = re.escape(socket.gethostname())

ENDS = {
    "exception": ("raise RuntimeError('no such luck')", 1, "RuntimeError: no such luck", True),
    "thread": (
        "threading.Thread(target=lambda: 1 / 0, name='lane').start(); work(world)",
        1,
        "in thread lane: Traceback",
        True,
    ),
    "data": ("raise DataError('shard 3: damaged')", 2, "hpctrain: shard 3: damaged", False),
    "exit-3": ("sys.exit(3)", 3, "hpctrain: left with exit code 3 while other", False),
    "exit-0": ("sys.exit(0)", 1, "hpctrain: left with exit code 0 while other", False),
    "abort": (
        "threading.Thread(target=guard.abort, args=(7, 'enough')).start(); work(world)",
        7,
        "enough",
        False,
    ),
    "interrupt": ("raise KeyboardInterrupt", 130, "hpctrain: interrupted", False),
}


@serial
@slow
@pytest.mark.parametrize("case", ENDS)
def test_what_ends_one_rank_ends_all_within_seconds_and_is_printed_once(launch, case):
    statement, code, message, traceback = ENDS[case]
    script = f"""
        with start() as world:
            ready(world.rank)
            if world.rank == 1:
                {statement}
            work(world)
    """
    launched = launch(3, script)
    launched.ready(3)

    ended = launched.end()

    assert ended.code == code
    assert ended.seconds < 30
    assert len(re.findall(rf"\[rank 1 @ {HOST}\] {re.escape(message)}", ended.err)) or (
        re.search(rf"\[rank 1 @ {HOST}\] Traceback", ended.err)
        and ended.err.count(message) == 1
    )
    assert ended.err.count("[rank ") == 1
    assert ended.err.count("Traceback") == traceback


@serial
@slow
@pytest.mark.parametrize("code", [0, 3])
def test_a_rank_that_leaves_without_a_word_ends_all(launch, code):
    script = f"""
        world = start()
        ready(world.rank)
        if world.rank == 1:
            sys.exit({code})
        work(world)
    """
    launched = launch(2, script)
    launched.ready(2)

    ended = launched.end()

    assert ended.code != 0
    assert ended.seconds < 30
    assert ended.err.count("[rank 1 @") == 1
    assert "hpctrain: left while other ranks go on; all ranks end" in ended.err


@serial
@slow
@pytest.mark.parametrize("code", [0, 2, 75])
def test_ranks_that_leave_alike_leave_in_peace(launch, code):
    script = f"""
        with start() as world:
            world.group.barrier()
            if {code} == 2:
                world.guard.leave(2)
        world.guard.leave({code})
    """
    ended = launch(3, script).end()

    assert ended.code == code
    assert "[rank" not in ended.err
    assert "hpctrain" not in ended.err


@serial
@slow
def test_a_rank_that_is_done_waits_for_one_that_still_works(launch):
    script = """
        with start() as world:
            if world.rank == 1:
                time.sleep(7)  # longer than the patience with ranks that leave early
        print("ended", world.rank)
    """
    ended = launch(2, script).end()

    assert ended.code == 0
    assert sorted(ended.out.split()) == ["0", "1", "ended", "ended"]


@serial
@slow
@pytest.mark.parametrize(
    ("raised", "code", "lines"),
    [
        ("ConfigError('run.toml: no lr')", 2, ["hpctrain: run.toml: no lr"]),
        ("CommError('peer: gone')", 1, None),
    ],
)
def test_an_error_of_all_ranks_is_printed_once(launch, raised, code, lines):
    ended = launch(3, f"with start() as world: raise {raised}").end()

    assert ended.code == code
    if lines:
        assert [line for line in ended.err.splitlines() if "hpctrain:" in line] == lines
    assert ended.err.count("Traceback") == (lines is None)


@serial
@slow
def test_a_check_that_fails_on_one_rank_ends_all_with_one_sentence(launch):
    script = """
        with start() as world:
            def check():
                if world.rank == 2:
                    raise DataError("data/x.h5: no such file")
            guard.agreed(world.group, check)
    """
    ended = launch(3, script).end()

    assert ended.code == 2
    assert ended.err.count("hpctrain: on rank 2: data/x.h5: no such file") == 1
    assert "Traceback" not in ended.err


@serial
@slow
def test_the_traceback_of_a_check_is_that_of_the_rank_that_failed(launch):
    script = """
        with start() as world:
            def broken():
                if world.rank == 1:
                    raise OSError("disk full")
            guard.agreed(world.group, broken)
    """
    ended = launch(3, script).end()

    assert ended.code == 1
    assert ended.err.count('raise OSError("disk full")') == 1
    assert ended.err.count("OSError: on rank 1: disk full") == 1


@serial
@slow
def test_a_wrapper_script_hides_no_error(launch):
    script = """
        with start() as world:
            if world.rank == 1:
                raise RuntimeError("no such luck")
            work(world)
    """
    ended = launch(2, script, ("sh", "-c", '"$0" "$@"; code=$?; exit $code')).end()

    assert ended.code != 0
    assert ended.err.count("RuntimeError: no such luck") == 1
    assert ended.err.count("[rank 1 @") == 1


@serial
@slow
def test_a_killed_rank_ends_all(launch):
    launched = launch(3, "world = start(); ready(world.rank); work(world)")
    pids = launched.ready(3)

    psutil.Process(pids[1]).kill()

    ended = launched.end()
    assert ended.code != 0
    assert ended.seconds < 30
    assert not any(map(alive, pids))


@serial
@slow
@pytest.mark.parametrize("wrapper", [(), ("sh", "-c", '"$0" "$@"; echo after')])
def test_a_killed_launcher_takes_all_ranks_with_it(launch, wrapper):
    launched = launch(3, "world = start(); ready(world.rank); work(world)", wrapper)
    pids = launched.ready(3)

    launched.process.send_signal(signal.SIGKILL)

    end = time.monotonic() + 30
    while any(map(alive, pids)):
        assert time.monotonic() < end, "orphans"
        time.sleep(0.05)
    assert launched.end().code == -signal.SIGKILL


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_check_that_all_ranks_pass_returns_each_rank_its_own_value(world):
    assert agreed(world, lambda: world.rank) == world.rank


@pytest.mark.parametrize("kind", [ConfigError, DataError, CheckpointError, OSError, KeyError])
def test_a_check_that_all_ranks_fail_alike_raises_what_each_raised(world, kind):
    def check():
        raise kind("x")

    with pytest.raises(kind) as caught:
        agreed(world, check)

    assert caught.value.args == ("x",)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", [ConfigError, DataError, OSError, AssertionError])
def test_a_check_that_some_ranks_fail_raises_the_same_on_all(world, kind):
    def check():
        if world.rank != 0:
            raise kind(f"no file for {world.rank}")

    with pytest.raises(kind, match=r"^on rank 1: no file for 1$") as caught:
        agreed(world, check)

    assert (caught.value.__cause__ is not None) == (world.rank == 1)


@pytest.mark.mpi(min_size=2)
def test_an_error_that_cannot_be_rebuilt_is_raised_as_a_comm_error(world):
    def check():
        if world.rank == 0:
            b"\xff".decode()

    with pytest.raises(
        CommError, match=r"^on rank 0: .*invalid start byte \(UnicodeDecodeError\)"
    ):
        agreed(world, check)


@serial
def test_errors_have_their_exit_codes():
    errors = [ConfigError(), CommError(), ValueError(), KeyboardInterrupt()]

    assert [exit_code(error) for error in errors] == [2, 1, 1, 130]


@serial
@pytest.mark.parametrize(("cause", "enough"), [(RangeError, True), (ShapeError, False)])
def test_a_task_that_bad_data_fails_needs_no_trace(cause, enough):
    outer = EngineError("task: got index 9")
    outer.__cause__ = cause("got index 9")

    assert plain(outer) is (outer.__cause__ if enough else outer)
    assert plain(KeyError("x")).args == ("x",)
