"""A training in which one rank stands still is reported, and ended if it does not go on."""

import re
import signal
import socket

import psutil
import pytest

pytestmark = [pytest.mark.serial, pytest.mark.slow]

HOST = socket.gethostname()
PROBED = {"model.name": "probing:build", "exchange.stall_s": 1}


def test_a_rank_that_stands_still_is_named_and_ends_the_run_on_all(train):
    launch = train(3, env={"TEST_FAULT": "1 6 mark"}, **PROBED, exchange__abort_s=3)
    launch.reached()
    stopped = [psutil.Process(launch.pids()[1])]
    stopped[0].send_signal(signal.SIGSTOP)

    ended = launch.end()

    assert ended.code == 124
    assert ended.seconds < 30
    assert re.search(r"hpctrain: stalled for \d+ s: step \d+, slice 1 of 1 \(", ended.err)
    assert "waiting for it: ranks 0, 2 (" in ended.err
    assert f"rank 1 @ {HOST}: no answer" in ended.err
    assert ended.err.endswith("all ranks end, because exchange.abort_s is 3\n")
    assert psutil.wait_procs(stopped, timeout=10)[1] == []


def test_a_rank_that_computes_for_long_is_named_with_its_segment(train):
    # Rank 1 waits for a file that never comes, in the middle of a forward pass.
    env = {"TEST_FAULT": "1 6 mark", "TEST_AWAIT": "never"}
    ended = train(2, env=env, **PROBED, exchange__abort_s=2).end()

    assert ended.code == 124
    assert "waiting for it: rank 0 (" in ended.err
    assert "not started on rank 1\n" in ended.err
    assert re.search(r"    lane compute: .* for \d+\.\d s\n", ended.err)
    assert re.search(r"    main thread at hpctrain/\S+\.py:\d+ ", ended.err)


STAGED = {"parallel.pipeline": 2, "parallel.micro_batches": 2, "exchange.reproducible": "run"}


def test_a_stage_that_stands_still_is_named_with_the_parcel_that_is_missing(train):
    # Rank 0 waits for a file in the forward pass of its stage; rank 1 for what it sends.
    env = {"TEST_FAULT": "0 9 mark", "TEST_AWAIT": "never"}
    ended = train(2, env=env, **PROBED, **STAGED, exchange__abort_s=3).end()

    assert ended.code == 124
    assert re.search(
        r"stalled for \d+ s: message \d+, parcel from rank 0 to rank 1\n", ended.err
    )
    assert "not started on rank 0\n" in ended.err
    assert "not started on rank 1\n" not in ended.err
    assert re.search(r"    lane compute: F\d stage 0 for \d+\.\d s\n", ended.err)
    assert ended.err.endswith("all ranks end, because exchange.abort_s is 3\n")


def test_a_rank_of_a_team_that_stands_still_is_named_with_the_round_that_is_missing(train):
    env = {"TEST_FAULT": "1 12 mark", "TEST_AWAIT": "never"}
    shared = {"parallel.tensor": 2, "exchange.reproducible": "run"}
    ended = train(2, env=env, **PROBED, **shared, exchange__abort_s=3).end()

    assert ended.code == 124
    assert re.search(r"stalled for \d+ s: message \d+, team_\w+ \(", ended.err)
    assert "waiting for it: rank 0 (" in ended.err
    assert "not started on rank 1\n" in ended.err
    assert ended.err.endswith("all ranks end, because exchange.abort_s is 3\n")
