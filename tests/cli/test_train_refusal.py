"""Bad input is refused in one sentence, with exit code 2, and leaves nothing behind."""

import re
import shutil

import h5py
import numpy as np
import pytest

pytestmark = [pytest.mark.serial, pytest.mark.slow]


def missing(data, folder):
    return {"data.train": folder / "none"}, "none: "


def truncated(data, folder):
    shutil.copytree(data, folder / "cut")
    shard = folder / "cut/train/shard-00001.h5"
    shard.write_bytes(shard.read_bytes()[:-100])
    return {"data.train": folder / "cut/train"}, "shard-00001.h5"


def flipped(data, folder):
    shutil.copytree(data, folder / "flipped")
    shard = folder / "flipped/train/shard-00001.h5"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(content)
    return {"data.train": folder / "flipped/train"}, "shard-00001.h5"


def empty(data, folder):
    with h5py.File(folder / "empty.h5", "w") as file:
        file["x"], file["y"] = np.zeros((0, 64), "f4"), np.zeros(0, "i4")
    settings = {"data.train": folder / "empty.h5", "data.inputs": "x", "data.targets": "y"}
    return settings, "empty.h5: got no records"


def whole_numbers(data, folder):
    with h5py.File(folder / "whole.h5", "w") as file:
        file["x"], file["y"] = np.zeros((9, 64), "u1"), np.zeros(9, "i4")
    paths = {f"data.{name}": folder / "whole.h5" for name in ("train", "test")}
    settings = {**paths, "data.inputs": "x", "data.targets": "y"}
    return settings, "makes losses of float64 from a batch of int32[1,64], int32[1], needed"


def other_test(data, folder):
    with h5py.File(folder / "other.h5", "w") as file:
        file["image"], file["label"] = np.zeros((9, 65), "f4"), np.zeros(9, "i4")
    settings = {"data.test": folder / "other.h5", "data.inputs": "image"}
    return {**settings, "data.targets": "label"}, "a batch of float32[1,65], int32[1]: dense"


def other_test_in_stages(data, folder):
    settings, _ = other_test(data, folder)
    wanted = "data.test: got batches of float32[1,65], int32[1], needed float32[1,8,8,1], int32"
    return {**settings, "parallel.pipeline": 2}, wanted


def wrong_type(data, folder):
    return {"optim.lr": "fast"}, '--optim.lr: got "fast", needed'


def small_batch(data, folder):
    return {"data.batch": 0}, '--data.batch: got "0"'


def unknown_model(data, folder):
    return {"model.name": "lenett"}, "lenett"


def no_function(data, folder):
    return {"model.name": "probing:none"}, "the module 'probing' has no 'none'"


def unfit_model(data, folder):
    return {"model.args.inputs": 65}, "does not take a batch of"


def wrong_argument(data, folder):
    return {"model.args.hiden": 3}, "hiden"


def pipeline(data, folder):
    return {"parallel.pipeline": 5}, "pipeline (5)"


def too_many_threads(data, folder):
    return {"device.threads": 999}, "threads"


def no_checkpoint(data, folder):
    return {"run.resume": folder / "none"}, "none"


def tight_budget(data, folder):
    return {"memory.budget": "1KiB"}, "memory.budget: got 1 KiB"


def nothing_to_synchronise(data, folder):
    return {"parallel.sync_bn": "true"}, "model mlp, which has no layer nn.BatchNorm"


# On one rank what any rank finds alike; on several what some find, or find elsewhere: they
# agree on a sentence, which is said once.
CASES = [
    *((case, 1) for case in (
        missing, empty, small_batch, unknown_model, no_function, wrong_argument,
        nothing_to_synchronise, whole_numbers, other_test,
    )),
    *((case, 2) for case in (
        truncated, wrong_type, unfit_model, too_many_threads, no_checkpoint, tight_budget,
        other_test_in_stages,
    )),
    (flipped, 3), (pipeline, 3),
]  # fmt: skip


def assert_refused(ended, fragment):
    assert ended.code == 2
    assert re.match(r"(\[rank \d+ @ \S+\] )?hpctrain: ", ended.said)
    assert fragment in ended.said
    assert ended.said.count("\n") == 1 and ended.said.endswith("\n")


@pytest.mark.parametrize(("case", "ranks"), CASES)
def test_bad_input_is_refused_in_one_sentence(train, data, tmp_path, case, ranks):
    settings, fragment = case(data, tmp_path)

    ended = train(ranks, **settings).end()

    assert_refused(ended, fragment)
    assert not (tmp_path / "runs").exists()


def test_an_unknown_key_is_refused_with_the_one_that_was_meant(train, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("[optim]\nlearning_rate = 1\nlr = 0.1\n[data]\nbach = 4\n")

    ended = train(2, file).end()

    assert_refused(ended, "run.toml: ")
    assert "learning_rate" in ended.said
    assert not (tmp_path / "runs").exists()


def test_a_batch_smaller_than_the_ranks_is_refused(train, tmp_path):
    assert_refused(train(3, data__batch=2).end(), "got 2 records for 3 ranks")
    assert not (tmp_path / "runs").exists()


def test_an_unfinished_run_with_other_settings_is_not_written_over(train, tmp_path):
    env = {"TEST_FAULT": "0 6 raise"}
    assert train(1, **{"model.name": "probing:build"}, env=env).end().code == 1
    before = {p: p.read_bytes() for p in tmp_path.rglob("runs/**/*") if p.is_file()}

    ended = train(2, optim__lr=0.5).end()

    assert_refused(ended, "optim.lr was 0.02 and is 0.5")
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("runs/**/*") if p.is_file()}


def test_a_launcher_that_mpi_does_not_see_is_refused(train, tmp_path):
    slurm = {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}

    ended = train(0, env=slurm).end()

    assert_refused(ended, "Slurm started 4 tasks but MPI sees 1 rank")
    assert not (tmp_path / "runs").exists()
