"""The same command finds its run again; a finished or different run is never touched."""

import json
import os
import signal

import numpy as np
import pytest

from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.train import checkpoint
from hpctrain.train.rundir import RunDir, versions

pytestmark = pytest.mark.serial


def toml(lr=0.1, log_every=50):
    return f"[optim]\nlr = {lr}\n[run]\nlog_every = {log_every}\n"


def start(root, lr=0.1, resume="auto", name="mnist", log_every=50):
    """Open a run whose digest follows the learning rate only."""
    return RunDir.open(
        root / "runs", name, toml(lr, log_every), f"lr={lr}", resume, {"run.log_every"}
    )


def leave(run, finished=False):
    """End a run as a process that is killed does, or finished."""
    if finished:
        run.finish({"accuracy": 0.99})
    run.close()
    return run.path.name


def test_a_first_run_gets_the_plain_name(tmp_path):
    with start(tmp_path) as run:
        assert run.path == tmp_path / "runs" / "mnist"
        assert not run.continued
        assert run.restore() is None
        assert (run.path / "config.toml").read_text() == toml()


def test_an_unfinished_run_of_the_same_digest_goes_on(tmp_path):
    leave(start(tmp_path))
    with start(tmp_path, log_every=10) as run:
        assert run.continued
        assert run.path.name == "mnist"
        assert (run.path / "config.toml").read_text() == toml(log_every=10)


def test_a_finished_run_is_left_alone(tmp_path):
    names = [leave(start(tmp_path), finished=True) for _ in range(3)]
    assert names == ["mnist", "mnist-2", "mnist-3"]
    assert json.loads((tmp_path / "runs/mnist/done.json").read_text()) == {"accuracy": 0.99}


def test_other_settings_are_refused_with_their_names_and_a_way_out(tmp_path):
    leave(start(tmp_path))
    with pytest.raises(ConfigError) as caught:
        start(tmp_path, lr=0.2, log_every=10)
    sentence = str(caught.value)
    assert "optim.lr was 0.1 and is 0.2" in sentence
    assert "log_every" not in sentence
    assert "--run.name" in sentence
    assert "--run.resume never" in sentence
    assert os.listdir(tmp_path / "runs") == ["mnist"]


def test_other_settings_after_a_finished_run_begin_a_new_one(tmp_path):
    leave(start(tmp_path), finished=True)
    assert leave(start(tmp_path, lr=0.2)) == "mnist-2"


def test_never_begins_anew_and_each_command_finds_its_own_run_again(tmp_path):
    leave(start(tmp_path, lr=0.1))
    assert leave(start(tmp_path, lr=0.2, resume="never")) == "mnist-2"
    assert leave(start(tmp_path, lr=0.1)) == "mnist"
    assert leave(start(tmp_path, lr=0.2)) == "mnist-2"
    assert leave(start(tmp_path, lr=0.2, resume="never")) == "mnist-3"


def test_a_run_from_a_checkpoint_is_a_new_one_that_can_be_requeued(tmp_path):
    with start(tmp_path) as first:
        path = str(checkpoint.save(first.checkpoints, 5, {"w": np.ones(2)}, {"step": 5}))
    with start(tmp_path, lr=0.2, resume=path) as run:
        assert (run.path.name, run.continued) == ("mnist-2", False)
        assert run.restore()[2] == {"step": 5}
        checkpoint.save(run.checkpoints, 6, {}, {"step": 6})
    with start(tmp_path, lr=0.2, resume=path) as run:
        assert (run.path.name, run.continued) == ("mnist-2", True)
        assert run.restore()[2] == {"step": 6}
    assert leave(start(tmp_path)) == "mnist"


def test_the_newest_checkpoint_of_a_run_can_be_begun_from(tmp_path):
    with start(tmp_path) as first:
        checkpoint.save(first.checkpoints, 5, {}, {"step": 5})
        checkpoint.save(first.checkpoints, 6, {}, {"step": 6})
    with start(tmp_path, resume=str(first.path), name="other") as run:
        assert run.restore()[2] == {"step": 6}


@pytest.mark.parametrize("there", ["nothing", "empty", "file"])
def test_a_path_without_a_checkpoint_is_refused_before_anything_is_made(tmp_path, there):
    path = tmp_path / "x"
    if there == "empty":
        path.mkdir()
    elif there == "file":
        path.write_text("")
    with pytest.raises(CheckpointError, match="got no whole checkpoint there"):
        start(tmp_path, resume=str(path))
    assert not (tmp_path / "runs").exists()


def test_a_run_is_open_to_one_process_and_free_when_that_is_killed(tmp_path):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        start(tmp_path)
        os.write(writer, b"x")
        signal.pause()
        os._exit(0)
    assert os.read(reader, 1) == b"x"
    with pytest.raises(ConfigError, match="another process works in it"):
        start(tmp_path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    with start(tmp_path) as run:
        assert run.continued


def test_a_directory_made_for_the_job_log_becomes_the_run(tmp_path):
    (tmp_path / "runs/mnist").mkdir(parents=True)
    (tmp_path / "runs/mnist/slurm-1.out").write_text("x")
    assert leave(start(tmp_path)) == "mnist"


@pytest.mark.parametrize("theirs", ["config.toml", "metrics.jsonl"])
def test_files_of_others_are_not_written_over(tmp_path, theirs):
    (tmp_path / "runs/mnist").mkdir(parents=True)
    (tmp_path / "runs/mnist" / theirs).write_text("x")
    with pytest.raises(ConfigError, match=f"is not a run, but holds {theirs}"):
        start(tmp_path)
    assert (tmp_path / "runs/mnist" / theirs).read_text() == "x"


def test_a_run_of_another_name_is_not_taken_for_a_numbered_one(tmp_path):
    leave(start(tmp_path, lr=0.2, name="mnist-2"))
    leave(start(tmp_path), finished=True)
    assert leave(start(tmp_path)) == "mnist-3"


def test_a_damaged_record_of_a_run_is_named(tmp_path):
    path = tmp_path / "runs" / leave(start(tmp_path)) / "run.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json: is damaged"):
        start(tmp_path)


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        start(tmp_path)


def test_rewinding_leaves_no_step_twice_and_no_broken_line(tmp_path):
    lines = ['{"event":"start"}\n', '{"step":1}\n', '{"step":2}\n', '{"step":3}\n', '{"step":2']
    with start(tmp_path) as run:
        run.metrics.write_text("".join(lines))
        assert run.rewind(2) == 2
        assert run.metrics.read_text() == "".join(lines[:3])
        assert run.rewind(2) == 0
        assert run.rewind(0) == 2


def test_rewinding_a_run_without_records_does_nothing(tmp_path):
    with start(tmp_path) as run:
        assert run.rewind(0) == 0
        assert not run.metrics.exists()


def test_a_stop_file_left_over_does_not_stop_the_next_start(tmp_path):
    with start(tmp_path) as run:
        run.stop_file.write_text("")
    with start(tmp_path) as run:
        assert not run.stop_file.exists()


def test_commands_pile_up_and_the_environment_is_the_last(tmp_path):
    with start(tmp_path) as run:
        run.describe(["hpctrain", "train", "a b.toml"], {"numpy": "1"})
        run.describe(["hpctrain"], versions())
        assert (run.path / "command.txt").read_text() == "hpctrain train 'a b.toml'\nhpctrain\n"
        assert json.loads((run.path / "env.json").read_text())["numpy"] == np.__version__
