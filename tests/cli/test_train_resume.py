"""A run that was broken off and started again ends as if nothing had happened."""

import os
import signal

import numpy as np
import pytest
from launched import records

from hpctrain.train import checkpoint

pytestmark = [pytest.mark.serial, pytest.mark.slow]

# Calls 1 and 2 find the shapes; an epoch has 7 steps and an evaluation of 5 batches.
SECOND_EPOCH = 2 + 7 + 5 + 3
MODELS = {
    "dropout": {"model.name": "probing:build", "model.args.dropout": 0.5},
    "batch-norm": {"model.name": "probing:build", "model.args.norm": "true"},
}


def last(folder, step=21):
    return checkpoint.load(folder / f"runs/mnist/checkpoints/step-{step:08d}")


def assert_ended_like(folder, reference):
    """The checkpoint holds the same bits, and every step was recorded once."""
    (arrays, state), (expected, expected_state) = last(folder), last(reference)
    assert list(arrays) == list(expected)
    assert all(np.array_equal(arrays[n].view("u1"), expected[n].view("u1")) for n in expected)
    assert state == expected_state
    rows = records(folder / "runs/mnist/metrics.jsonl")
    assert [r["step"] for r in rows if r["kind"] == "step"] == list(range(1, 22))
    assert [r["epoch"] for r in rows if r["kind"] == "epoch"] == [1, 2, 3]
    before = records(reference / "runs/mnist/metrics.jsonl")
    assert [r.get("loss") for r in rows] == [r.get("loss") for r in before]
    assert [r.get("train_loss") for r in rows] == [r.get("train_loss") for r in before]


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """Folders of runs that nothing disturbed, by name, as they are asked for."""
    return {}, tmp_path_factory


@pytest.fixture
def undisturbed(train, references):
    """The folder of the same run, never disturbed."""

    def run(ranks, model):
        made, factory = references
        if (ranks, model) not in made:
            made[ranks, model] = folder = factory.mktemp(f"{model}-{ranks}")
            ended = train(ranks, folder=folder, **MODELS[model]).end()
            assert (ended.code, ended.err) == (0, "")
        return made[ranks, model]

    return run


def fault(rank, call, deed):
    after = {"TEST_AWAIT": "runs/mnist/checkpoints/step-00000007"} if call > 14 else {}
    return {"TEST_FAULT": f"{rank} {call} {deed}", **after}


def test_a_run_whose_launcher_was_killed_goes_on_bit_for_bit(train, tmp_path, undisturbed):
    model = MODELS["dropout"]
    launch = train(2, env=fault(0, SECOND_EPOCH, "mark"), **model)
    launch.reached()
    launch.process.kill()
    launch.end()

    ended = train(2, **model).end()

    assert (ended.code, ended.err) == (0, "")
    assert "step 7/21" not in ended.out and "step 8/21" in ended.out
    assert_ended_like(tmp_path, undisturbed(2, "dropout"))


@pytest.mark.parametrize(("ranks", "model"), [(1, "dropout"), (2, "batch-norm")])
def test_a_run_of_which_a_rank_was_killed_goes_on_bit_for_bit(
    train, tmp_path, undisturbed, ranks, model
):
    env = fault(ranks - 1, SECOND_EPOCH, "die")
    assert train(ranks, env=env, **MODELS[model]).end().code != 0

    ended = train(ranks, **MODELS[model]).end()

    assert (ended.code, ended.err) == (0, "")
    assert_ended_like(tmp_path, undisturbed(ranks, model))


@pytest.mark.parametrize(("ranks", "how"), [(1, "signal"), (2, "signal"), (2, "file")])
def test_a_run_told_to_stop_saves_in_mid_epoch_and_goes_on_bit_for_bit(
    train, tmp_path, undisturbed, ranks, how
):
    model = "batch-norm" if how == "file" else "dropout"
    call = 2 + 2 if how == "file" else SECOND_EPOCH  # the file is looked for once a second
    launch = train(ranks, env=fault(0, call, "mark"), **MODELS[model])
    launch.reached()
    if how == "file":
        (tmp_path / "runs/mnist/STOP").touch()
    else:
        os.kill(launch.process.pid, signal.SIGUSR1)

    stopped = launch.end()
    ended = train(ranks, **MODELS[model]).end()

    assert (stopped.code, stopped.err) == (75, "")
    assert stopped.out.count("the same command goes on from here") == 1
    assert ("file STOP" if how == "file" else "signal SIGUSR1") in stopped.out
    assert len(set(launch.calls())) == 1 and len(launch.calls()) == ranks
    assert (ended.code, ended.err) == (0, "")
    assert_ended_like(tmp_path, undisturbed(ranks, model))


def test_a_signal_to_one_rank_stops_all(train, tmp_path):
    launch = train(3, env=fault(0, SECOND_EPOCH, "mark"), **MODELS["dropout"])
    launch.reached()
    os.kill(launch.pids()[2], signal.SIGUSR1)

    ended = launch.end()

    assert (ended.code, ended.err) == (75, "")
    assert ended.out.count("the same command goes on from here") == 1


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_checkpoint_is_taken_over_by_another_number_of_ranks(
    train, tmp_path, undisturbed, ranks
):
    source = undisturbed(2, "batch-norm") / "runs/mnist/checkpoints/step-00000014"
    # One step so small that it changes no weight.
    tiny = {"optim.lr": 1e-30, "optim.momentum": 1e-30, "run.max_steps": 15}

    ended = train(ranks, run__resume=source, **tiny, **MODELS["batch-norm"]).end()

    assert (ended.code, ended.err) == (0, "")
    rows = records(tmp_path / "runs/mnist/metrics.jsonl")
    assert [r["step"] for r in rows if r["kind"] == "step"] == [15]
    found, expected = last(tmp_path, 15)[0], checkpoint.load(source)[0]
    names = [name for name in expected if name.startswith("parameters/")]
    assert len(names) == 6
    for name in names:
        np.testing.assert_array_equal(found[name], expected[name])


def test_a_run_broken_off_before_its_first_checkpoint_begins_anew(train, tmp_path):
    assert train(1, env=fault(0, 2 + 4, "die"), **MODELS["dropout"]).end().code != 0

    assert train(1, run__log_every=1, **MODELS["dropout"]).end().code == 0

    rows = records(tmp_path / "runs/mnist/metrics.jsonl")
    assert [r["step"] for r in rows if r["kind"] == "step"] == list(range(1, 22))
