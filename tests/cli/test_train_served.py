"""Runs with servers: like runs by allreduce, broken off, gone on with in another form."""

import json
import os
import re
import signal

import numpy as np
import psutil
import pytest
from launched import records

from hpctrain.train import checkpoint

pytestmark = [pytest.mark.serial, pytest.mark.slow]

SERVER = {"exchange__kind": "server"}
PROBED = {"model.name": "probing:build"}
SECOND_EPOCH = 2 + 7 + 5 + 3


def last(folder, step=21):
    return checkpoint.load(folder / f"runs/mnist/checkpoints/step-{step:08d}")


def assert_alike(found, expected, tolerance):
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_allclose(
            found[name], expected[name], rtol=tolerance, atol=tolerance, err_msg=name
        )


def assert_traced(path, servers, workers):
    """Servers receive, work and answer between the first and the last task of workers."""
    rows = json.loads(path.read_text())["traceEvents"]
    titles = {r["pid"]: r["args"]["name"] for r in rows if r["name"] == "process_name"}
    assert len(titles) == servers + workers
    times = [r["ts"] for r in rows if r["ph"] == "X" and r["pid"] >= servers]
    for server in range(servers):
        assert titles[server].endswith(f"server {server}")
        mine = [r for r in rows if r["pid"] == server]
        spans = [r for r in mine if r["ph"] == "X"]
        assert {"receive", "sum", "answer"} <= {r["name"].split()[0] for r in spans}
        assert all(min(times) <= r["ts"] <= max(times) + 1e6 for r in spans)
        assert any(r["ph"] == "C" and r["name"] == "queue" for r in mine)


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    return {}, tmp_path_factory


@pytest.fixture
def undisturbed(train, references):
    """The folder of a run that nothing disturbed."""

    def run(ranks, name, **settings):
        made, factory = references
        if name not in made:
            made[name] = folder = factory.mktemp(name)
            ended = train(ranks, folder=folder, **settings).end()
            assert (ended.code, ended.err) == (0, "")
        return made[name]

    return run


@pytest.mark.parametrize(("ranks", "more"), [
    (3, {}), (4, {"exchange__servers": 2, "optim__clip_norm": 0.5}),
])  # fmt: skip
def test_a_run_with_servers_ends_as_one_by_allreduce(train, tmp_path, undisturbed, ranks, more):
    clip = {k: v for k, v in more.items() if k.startswith("optim")}
    reference = undisturbed(2, f"allreduce-{len(clip)}", optim__name="adam", **clip)

    ended = train(
        ranks, optim__name="adam", exchange__checksum="true", run__profile="3:5", **SERVER,
        **more,
    ).end()  # fmt: skip

    assert (ended.code, ended.err) == (0, "")
    servers = more.get("exchange__servers", 1)
    assert_traced(tmp_path / "runs/mnist/trace/trace.json", servers, ranks - servers)
    assert "path server" in ended.out
    assert_alike(last(tmp_path)[0], last(reference)[0], 1e-5)
    rows = records(tmp_path / "runs/mnist/metrics.jsonl")
    assert [r["step"] for r in rows if r["kind"] == "step"] == list(range(1, 22))


def test_a_run_goes_on_with_servers_with_others_and_without(train, tmp_path, undisturbed):
    reference = undisturbed(2, "allreduce-0", optim__name="adam")
    env = {"TEST_FAULT": "0 0 none"}
    forms = [(3, SERVER, 7), (4, {**SERVER, "exchange__servers": 2}, 14), (2, {}, 21)]
    path = "never"
    for ranks, form, steps in forms:
        # A limit counts as another run, which begins at the path of the last.
        ended = train(
            ranks, env=env, optim__name="adam", run__max_steps=steps, run__resume=path,
            run__name=f"to-{steps}", **form,
        ).end()  # fmt: skip
        assert (ended.code, ended.err) == (0, "")
        path = tmp_path / f"runs/to-{steps}/checkpoints/step-{steps:08d}"

    assert_alike(checkpoint.load(path)[0], last(reference)[0], 1e-5)


@pytest.mark.parametrize("who", [0, 2], ids=["server", "worker"])
def test_a_run_one_of_whose_ranks_was_killed_goes_on_bit_for_bit(
    train, tmp_path, undisturbed, who
):
    """In MXNet all others stall for ever, and what the server knew of the optimizer is lost."""
    reference = undisturbed(3, "served", **SERVER, **PROBED)
    env = {
        "TEST_FAULT": f"1 {SECOND_EPOCH} mark",
        "TEST_AWAIT": "runs/mnist/checkpoints/step-00000007",
    }
    launch = train(3, env=env, **SERVER, **PROBED)
    launch.reached()
    killed = launch.pids()[who]
    psutil.Process(killed).kill()
    broken = launch.end()

    ended = train(3, **SERVER, **PROBED).end()

    assert broken.code != 0 and broken.seconds < 30
    # MPICH kills the others without a word and names whichever it looks at first (Open MPI and
    # Slurm name the right one): what a run can do is to have said which processes serve.
    assert re.search(r"signal 9|Killed", broken.said)
    assert (f", process {killed}" in broken.out) == (who == 0)
    assert (ended.code, ended.err) == (0, "")
    assert "step 8/21" in ended.out and "step 7/21" not in ended.out
    (found, state), (expected, state_) = last(tmp_path), last(reference)
    assert all(np.array_equal(found[n].view("u1"), expected[n].view("u1")) for n in expected)
    assert state == state_


@pytest.mark.parametrize(
    ("mode", "who"), [("sync", 0), ("sync", 2), ("async", 0), ("bounded", 2)]
)
def test_a_signal_stops_all_at_one_step_and_the_run_goes_on(train, tmp_path, mode, who):
    launch = train(
        3, env={"TEST_FAULT": f"1 {SECOND_EPOCH} mark"}, exchange__mode=mode, **SERVER, **PROBED
    )
    launch.reached()
    os.kill(launch.pids()[who], signal.SIGUSR1)

    stopped = launch.end()
    ended = train(3, exchange__mode=mode, **SERVER, **PROBED).end()

    assert (stopped.code, stopped.err) == (75, "")
    assert (ended.code, ended.err) == (0, "")
    rows = records(tmp_path / "runs/mnist/metrics.jsonl")
    assert [r["step"] for r in rows if r["kind"] == "step"] == list(range(1, 22))
    # Every record of the third epoch was counted, by whoever computed it.
    position = last(tmp_path)[1]["position"]
    assert (position["epoch"], position["step"]) == (3, 21)


@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_without_rounds_an_epoch_counts_every_record_once(train, tmp_path, mode):
    """And the servers tell how busy they were, and how late what they got."""
    ended = train(
        3, exchange__mode=mode, run__checkpoint_every=1, run__profile="3:9", **SERVER
    ).end()

    assert (ended.code, ended.err) == (0, "")
    rows = records(tmp_path / "runs/mnist/metrics.jsonl")
    told = [r for r in rows if r["kind"] == "server"]
    assert len(told) == ended.out.count("updates between a pull and its push: ") == 3
    for row in told:
        assert row["busy"] > 0 and row["longest"] >= row["queue"] >= 0
    # Two workers pushed the slices of 21 steps, each some updates late.
    late = [times for row in told for _, times in row["late"]]
    assert sum(late) % 42 == 0 and sum(late) > 0
    trace = json.loads((tmp_path / "runs/mnist/trace/trace.json").read_text())["traceEvents"]
    assert {"late", "queue"} <= {r["name"] for r in trace if r["ph"] == "C" and r["pid"] == 0}
    epochs = [r for r in rows if r["kind"] == "epoch"]
    assert len(epochs) == 3
    for row in epochs:  # whole records, of 100 and of 41
        assert abs(row["train_accuracy"] * 100 - round(row["train_accuracy"] * 100)) < 1e-6
        assert abs(row["test_accuracy"] * 41 - round(row["test_accuracy"] * 41)) < 1e-6


def test_servers_without_workers_are_refused(train):
    ended = train(1, **SERVER).end()

    assert ended.code == 2
    assert "leaves nobody to train" in ended.err and ended.err.count("hpctrain:") == 1
