"""What goes wrong in the middle of a training ends all ranks soon, and is told once."""

import re
import socket
import time

import psutil
import pytest

pytestmark = [pytest.mark.serial, pytest.mark.slow]

PROBED = {"model.name": "probing:build"}
FOURTH_STEP = 2 + 4


def alive(pids):
    """Those of the processes that still run, after a moment to be cleared away."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        left = [
            pid
            for pid in pids
            if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        ]
        if not left:
            break
        time.sleep(0.05)
    return left


def test_a_rank_that_is_killed_takes_all_with_it(train):
    launch = train(3, env={"TEST_FAULT": f"1 {FOURTH_STEP} mark"}, **PROBED)
    launch.reached()
    pids = launch.pids()
    psutil.Process(pids[1]).kill()

    ended = launch.end()

    assert len(pids) == 3
    assert ended.code != 0
    assert ended.seconds < 30
    assert alive(pids) == []


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_exception_on_one_rank_ends_all_and_is_told_once(train, tmp_path, ranks):
    broken = ranks // 2
    launch = train(ranks, env={"TEST_FAULT": f"{broken} {FOURTH_STEP} raise"}, **PROBED)

    ended = launch.end()

    place = rf"\[rank {broken} @ {re.escape(socket.gethostname())}\] "
    assert ended.code == 1
    assert ended.err.count("RuntimeError: no such luck") == 1
    assert len(re.findall(rf"^{place}.*Traceback", ended.err, re.MULTILINE)) >= 1
    assert ended.err.count("[rank ") == 1
    assert "probing.py" in ended.err
    assert alive(launch.pids()) == []
    assert not (tmp_path / "runs/mnist/done.json").exists()


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_loss_that_is_not_finite_ends_the_run_with_a_sentence(train, tmp_path, ranks):
    ended = train(ranks, optim__lr=1e30, run__epochs=9).end()

    assert ended.code == 86
    assert ended.err.count("\n") == 1
    assert "hpctrain: training: the loss is " in ended.err
    assert not list(tmp_path.rglob("step-*"))


def test_no_checkpoint_holds_parameters_that_are_not_finite(train, tmp_path):
    # The loss of the only step is that of the first parameters; its update leaves none whole.
    ended = train(2, optim__lr=1e38, optim__weight_decay=1e30, run__max_steps=1).end()

    assert ended.code == 86
    assert ended.err.count("\n") == 1
    assert not list(tmp_path.rglob("step-*"))


def test_a_label_beyond_the_classes_is_told_with_its_record(train):
    ended = train(1, **{"model.args.classes": 3}).end()

    assert ended.code == 2
    assert "got index 3, needed 0 to 2" in ended.said
    assert re.search(r"train/shard-00000\.h5 has 3 in record \d+ of label\n", ended.said)
