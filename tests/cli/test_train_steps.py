"""Steps of several batches, skipped ones, parts and compression, from the command line."""

import os
import signal

import numpy as np
import pytest
from launched import records

from hpctrain.train import checkpoint

pytestmark = [pytest.mark.serial, pytest.mark.slow]

# Of the 7 batches of an epoch two make a step; on 2 ranks the gradients go in two bits.
SETTINGS = {
    "model.name": "probing:build", "model.args.dropout": 0.5, "data.accumulate": 2,
    "exchange.path": "direct", "exchange.wire": "2bit", "exchange.threshold": 0.01,
    "exchange.slice_mib": 0.001, "optim.nonfinite": "skip", "optim.loss_scale": 4,
    "optim.clip_norm": 1.0,
}  # fmt: skip
SECOND_EPOCH = 2 + 7 + 5 + 4  # calls: two shapes, an epoch and its evaluation, two steps


def last(folder, step=12):
    return checkpoint.load(folder / f"runs/mnist/checkpoints/step-{step:08d}")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders of runs on 2 ranks that nothing disturbed, as they are asked for."""
    return {}, tmp_path_factory


@pytest.fixture
def undisturbed(train, made):
    """The folder of such a run, with or without parts of the optimizer's state."""

    def run(sharded):
        folders, factory = made
        if sharded not in folders:
            folders[sharded] = factory.mktemp(f"whole-{sharded}")
            settings = {**SETTINGS, "optim.sharded": sharded}
            assert train(2, folder=folders[sharded], **settings).end().code == 0
        return folders[sharded]

    return run


@pytest.mark.parametrize("sharded", ["false", "true"])
def test_a_run_that_was_stopped_owes_what_it_owed(train, tmp_path, undisturbed, sharded):
    settings = {**SETTINGS, "optim.sharded": sharded}
    whole = undisturbed(sharded)
    launch = train(2, env={"TEST_FAULT": f"0 {SECOND_EPOCH} mark"}, **settings)
    launch.reached()
    os.kill(launch.process.pid, signal.SIGUSR1)
    assert launch.end().code == 75

    ended = train(2, **settings).end()

    assert (ended.code, ended.err) == (0, "")
    (arrays, state), (expected, expected_state) = last(tmp_path), last(whole)
    assert list(arrays) == list(expected)
    assert all(np.array_equal(arrays[n].view("u1"), expected[n].view("u1")) for n in expected)
    assert state == expected_state
    assert np.abs(arrays["owed/1"]).max() > 0
    assert any(name.startswith("optimizer/momentum/") for name in arrays)
    rows = records(tmp_path / "runs/mnist/metrics.jsonl")
    assert [r["step"] for r in rows if r["kind"] == "step"] == list(range(1, 13))


@pytest.mark.parametrize("ranks", [1, 3])
def test_other_ranks_take_over_parts_and_debts(train, tmp_path, undisturbed, ranks):
    settings = {**SETTINGS, "optim.sharded": "true"}
    at = undisturbed("true") / "runs/mnist/checkpoints/step-00000008"

    ended = train(ranks, **{**settings, "run.resume": at}).end()

    assert (ended.code, ended.err) == (0, "")
    assert last(tmp_path)[1]["position"]["step"] == 12


def test_an_overflow_on_the_wire_is_skipped_and_told(train, tmp_path):
    ended = train(
        2, exchange__path="direct", exchange__wire="fp16", optim__nonfinite="skip",
        optim__loss_scale=2**24,
    ).end()  # fmt: skip

    assert (ended.code, ended.err) == (0, "")
    assert (
        "step 1 skipped: the sum of the gradients is not finite "
        "(loss scale 16777216 -> 8388608)"
    ) in ended.out
    assert "step 21 skipped" not in ended.out
    skips = [r for r in records(tmp_path / "runs/mnist/metrics.jsonl") if r["kind"] == "skip"]
    assert skips[0]["ranks"] == [] and skips[0]["loss_scale"] == 2**23
