"""A checkpoint of MXNet goes on in a run."""

import json
from pathlib import Path

import pytest

from hpctrain.cli.import_mxnet import run
from hpctrain.errors import CheckpointError, ConfigError, DataError

pytestmark = pytest.mark.serial

# Two epochs by MXNet 1.9.1: tests/symbol/oracle/make_networks.py.
PREFIX = Path(__file__).parents[1] / "symbol" / "oracle" / "digits"
SETTINGS = """\
run = {epochs = 1, log_every = 1}
data = {train = "DATA/train", test = "DATA/test", batch = 16, test_batch = 9}
optim = {lr = RATE}
"""


def test_a_checkpoint_becomes_a_folder(tmp_path, capsys):
    assert run([str(PREFIX), "2", "--out", str(tmp_path / "m")]) == 0

    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "parameters.npz",
        "symbol.json",
    ]
    said = capsys.readouterr().out
    assert "6 parameters of 308 numbers, 2 of state" in said
    assert "--loss.name softmax_cross_entropy" in said
    assert "data" in said and "fc_output" in said
    with pytest.raises(ConfigError, match="choose another"):
        run([str(PREFIX), "2", "--out", str(tmp_path / "m")])


def test_files_that_are_missing_or_damaged_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"digits-0009\.params: cannot be read"):
        run([str(PREFIX), "9", "--out", str(tmp_path / "m")])
    with pytest.raises(DataError, match=r"nothing-symbol\.json"):
        run([str(tmp_path / "nothing"), "1"])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_goes_on_from_it(hpctrain, data, tmp_path):
    run([str(PREFIX), "2", "--out", str(tmp_path / "m")])
    for name, rate in (("still", "1e-30"), ("moved", "0.01")):
        text = SETTINGS.replace("DATA", str(data)).replace("RATE", rate)
        (tmp_path / "run.toml").write_text(text)

        ended = hpctrain(
            2, "train", "run.toml", "--model.name", f"symbol:{tmp_path / 'm'}",
            "--run.name", name,
        ).end()  # fmt: skip

        assert (ended.code, ended.err) == (0, "")
        found = json.loads((tmp_path / "runs" / name / "done.json").read_text())
        assert found["test_accuracy"] > 0.9  # 0.25 without what MXNet had learned
