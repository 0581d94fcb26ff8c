"""Stalls on real ranks: each test starts a few, and one of them keeps the others waiting."""

import re
import signal
import socket
import textwrap
import time

import psutil
import pytest

from hpctrain.comm import world as worlds
from hpctrain.comm.stall import Watch
from hpctrain.comm.world import start

serial = pytest.mark.serial
slow = pytest.mark.slow
HOST = socket.gethostname()

TRAINING = """
from hpctrain.comm.stall import Watch
from hpctrain.trace import Activity

activity = Activity()

def exchange(world, watch, key):
    watch.posted(key, f"slice {key} of 2 (w{key}.weight)")
    world.group.iallreduce(np.ones(4)).wait(1e-3)
    watch.completed(key)

def hang(seconds=60):  # as a read from a file system that does not answer
    with activity.doing("reading train-003.h5 records 0 to 511"):
        threading.Event().wait(seconds)

def train(world, watch, last=10**9, straggler=None, seconds=60):
    for step in range(1, last + 1):
        for key in 1, 2:
            if world.rank == straggler and (step, key) == (3, 2):
                hang(seconds)
            exchange(world, watch, key)

"""


@pytest.fixture
def training(launch):
    """Start ranks that exchange two slices a step; ``body`` has ``world`` and ``watch``."""

    def started(ranks, body, limits="1, 3"):
        head = (
            "with start() as world:\n"
            f"    with Watch(world, {limits}, activity, lambda: [('io', 'read step 3', 5.0)]) "
            "as watch:\n"
        )
        return launch(ranks, TRAINING + head + textwrap.indent(textwrap.dedent(body), " " * 8))

    return started


@serial
@slow
def test_a_rank_that_hangs_is_named_with_what_it_does_and_then_all_end(training):
    launched = training(3, "ready(world.rank)\ntrain(world, watch, straggler=1)")
    launched.ready(3)

    ended = launched.end()

    assert ended.code == 124
    assert 3 < ended.seconds < 30
    first, second = ended.err.split(f"[rank 0 @ {HOST}] ")[1:]
    for text in first, second:
        assert re.search(
            r"^hpctrain: stalled for \d+ s: step 3, slice 2 of 2 \(w2.weight\)\n"
            r"  waiting for it: ranks 0, 2 \(\d+\.\d( to \d+\.\d)? s\)\n"
            r"  not started on rank 1\n"
            rf"  rank 1 @ {HOST}:\n"
            r"    reading train-003\.h5 records 0 to 511 for \d+\.\d s\n"
            r"    lane io: read step 3 for 5\.0 s\n"
            r"    main thread at \S+/script\.py:\d+ hang\n",
            text,
        )
    assert "all ranks end" not in first
    assert second.endswith("  all ranks end, because exchange.abort_s is 3\n")


@serial
@slow
def test_a_rank_answers_behind_the_messages_that_it_has_not_taken_in(training):
    ended = training(
        2,
        """
        if world.rank == 0:
            sent = [world.group.isend(np.ones(4), 1) for _ in range(150)]
            watch.posted(0, "slice 1 of 1")
            watch.inside.posted(0, "statistics")
        hang()
        """,
    ).end()

    assert ended.code == 124
    assert ended.err.count("step 1, slice 1 of 1\n") == 2
    assert ended.err.count("message 1, statistics\n") == 2  # what a step waits for inside
    assert ended.err.count("not started on rank 1") == 4
    assert "no answer" not in ended.err


@serial
@slow
def test_a_stopped_rank_is_named_as_one_that_does_not_answer(training):
    launched = training(3, "ready(world.rank)\ntrain(world, watch)")
    pids = launched.ready(3)

    stopped = [psutil.Process(pids[2])]
    stopped[0].send_signal(signal.SIGSTOP)

    ended = launched.end()
    assert ended.code == 124
    assert ended.seconds < 30
    assert ended.err.count(f"rank 2 @ {HOST}: no answer; its process is stopped") == 2
    assert ended.err.count("waiting for it: ranks 0, 1 (") == 2
    assert ended.err.count("[rank 0 @ ") == 2
    assert psutil.wait_procs(stopped, timeout=10)[1] == []


@serial
@slow
def test_a_lowest_rank_that_is_stopped_is_named_by_the_next(training):
    launched = training(3, "ready(world.rank)\ntrain(world, watch)")
    pids = launched.ready(3)

    psutil.Process(pids[0]).send_signal(signal.SIGSTOP)

    ended = launched.end()
    assert ended.code == 124
    assert ended.seconds < 30
    assert ended.err.count(f"rank 0 @ {HOST}: no answer") == 2
    assert ended.err.count("[rank 1 @ ") == 2


@serial
@slow
def test_a_collective_that_one_rank_leaves_out_is_a_stall(training):
    launched = training(
        3,
        """
        world.control.barrier()
        ready(world.rank)
        if world.rank == 0:
            hang()
        world.control.allgather_obj("values")
        """,
    )
    launched.ready(3)

    ended = launched.end()

    assert ended.code == 124
    assert ended.seconds < 30
    assert ended.err.count("[rank 1 @ ") == 2
    assert re.search(
        r"s: collective of the control group, allgather_obj at \S+/script.py:\d+ <module>\n"
        r"  waiting for it: ranks 1, 2 ",
        ended.err,
    )
    assert ended.err.count("reading train-003.h5 records 0 to 511") == 2


@serial
@slow
def test_a_stall_that_passes_is_told_once_and_training_goes_on(training):
    ended = training(
        2, "train(world, watch, last=4, straggler=1, seconds=2.5)\nprint('done')", "1, 0"
    ).end()

    assert ended.code == 0
    assert ended.out.split() == ["done", "done"]
    assert len(re.findall(r"stalled for \d+ s: step 3, slice 2", ended.err)) == 1
    assert ended.err.count("hpctrain:") == 1


@serial
@slow
def test_ranks_that_train_and_leave_at_different_times_say_nothing(training):
    ended = training(
        3,
        """
        train(world, watch, last=30)
        if world.rank == 1:
            hang(2)  # as long as it takes to write the last checkpoint
        """,
        "0.5, 1",
    ).end()

    assert (ended.code, ended.out, ended.err) == (0, "", "")


@serial
@slow
def test_a_watch_that_fails_says_so_once_and_training_goes_on(training):
    ended = training(
        2,
        """
        if world.rank == 1:
            with activity.doing(lambda: 1 / 0):
                train(world, watch, last=3, straggler=1, seconds=5)
        else:
            train(world, watch, last=3)
        print("done")
        """,
        "0.5, 0",
    ).end()

    assert ended.code == 0
    assert ended.out.split() == ["done", "done"]
    assert ended.err.count("no watch for stalls from here on, training goes on") == 1
    assert ended.err.count("ZeroDivisionError") == 1
    assert ended.err.count(f"rank 1 @ {HOST}: no answer") == 1


@serial
@slow
def test_an_exception_passes_through_the_watch_and_ends_all(training):
    ended = training(
        3,
        """
        if world.rank == 1:
            raise DataError("shard 3: damaged")
        train(world, watch)
        """,
    ).end()

    assert ended.code == 2
    assert ended.seconds < 30
    assert ended.err.count("hpctrain: shard 3: damaged") == 1
    assert "stalled" not in ended.err


@pytest.fixture
def unwatched(monkeypatch):
    """Start worlds in this process without a thread that outlives the test."""
    monkeypatch.setattr(worlds, "die_with_launcher", lambda: None)


def test_watches_come_and_go(unwatched):
    with start() as world:
        for _ in range(3):
            with Watch(world, stall_s=0.2) as watch:
                watch.posted(0, "slice 1")
                watch.completed(0)
            assert not watch._thread.is_alive()


def looks(watch, moments):
    """Let ``watch`` look at these moments after an exchange has been started."""
    watch.posted(0, "slice 1 of 1")
    watch._looked = started = time.monotonic()
    for moment in moments:
        watch._look(started + moment)


@serial
def test_an_exchange_that_stays_open_is_told_once(unwatched, capfd):
    with start() as world, Watch(world, 2, 0) as watch:
        looks(watch, range(10))
        assert capfd.readouterr().err.count("stalled for ") == 1
        watch.completed(0)
        looks(watch, range(10))
        assert capfd.readouterr().err.count("stalled for 2 s: step 2, slice 1 of 1") == 1


@serial
def test_time_in_which_the_process_was_stopped_is_no_stall(unwatched, capfd):
    with start() as world, Watch(world, 2, 4) as watch:
        looks(watch, [1, 1000, 1001])
        assert capfd.readouterr().err == ""
