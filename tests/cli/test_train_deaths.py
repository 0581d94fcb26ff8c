"""Runs that lose workers and go on: only with Open MPI, and its fault tolerance."""

import psutil
import pytest
from launched import records
from mpi4py import MPI

from hpctrain.train import checkpoint

pytestmark = [
    pytest.mark.serial,
    pytest.mark.slow,
    pytest.mark.skipif(
        MPI.get_vendor()[0] != "Open MPI",
        reason="needs Open MPI: no other library goes on when a rank has died",
    ),
]

DIES = 2 + 7 + 5 + 3  # a call of the model in the second epoch
BEARING = {"TEST_MPIRUN": "--with-ft ulfm"}
TOLERANT = {"exchange__kind": "server", "exchange__tolerate": 1, "model.name": "probing:build"}


@pytest.mark.parametrize(("ranks", "more"), [
    (4, {"exchange__mode": "async"}),
    (5, {"exchange__mode": "bounded", "exchange__servers": 2, "exchange__staleness": 1}),
])  # fmt: skip
def test_a_worker_dies_and_the_others_finish_its_work(train, tmp_path, ranks, more):
    victim = ranks - 1
    env = BEARING | {"TEST_FAULT": f"{victim} {DIES} die"}
    ended = train(ranks, env=env, run__checkpoint_every=1, **TOLERANT, **more).end()

    assert ended.code == 0
    assert ended.said.count("has died") == 1
    assert f"rank {victim} on " in ended.out
    rows = records(tmp_path / "runs/mnist/metrics.jsonl")
    assert [r["rank"] for r in rows if r["kind"] == "death"] == [victim]
    assert [r["step"] for r in rows if r["kind"] == "step"] == list(range(1, 22))
    epochs = [r for r in rows if r["kind"] == "epoch"]
    assert len(epochs) == 3
    # All records again, of 100 and 41, where the shares have been made anew.
    for name, count, counted in ("train", 100, epochs[::2]), ("test", 41, epochs):
        for row in counted:
            hits = row[f"{name}_accuracy"] * count
            assert abs(hits - round(hits)) < 1e-6
    assert checkpoint.load(tmp_path / "runs/mnist/checkpoints/step-00000021")[1]


def test_a_second_death_ends_the_run_and_the_same_command_goes_on(train):
    faults = f"2 {DIES} die,3 {DIES + 4} die"
    broken = train(
        4, env=BEARING | {"TEST_FAULT": faults}, exchange__mode="async", **TOLERANT
    ).end()
    ended = train(4, env=BEARING, exchange__mode="async", **TOLERANT).end()

    assert broken.code == 137
    assert broken.err.count("died, needed all but 1 (exchange.tolerate)") == 1
    assert ended.code == 0
    assert "step 8/21" in ended.out and "step 7/21" not in ended.out


@pytest.mark.parametrize("who", [0, 1])
def test_a_run_does_not_outlive_its_server_or_first_worker(train, who):
    env = BEARING | {"TEST_FAULT": f"2 {DIES} mark"}
    launch = train(3, env=env, exchange__mode="async", **TOLERANT)
    launch.reached()
    psutil.Process(launch.pids()[who]).kill()
    ended = launch.end()

    assert ended.code == 137 and ended.seconds < 30
    # Whoever writes to it, waits for it or looks around notices first.
    assert f"rank {who}" in ended.err and "died" in ended.err
    assert "the same command" in ended.err
