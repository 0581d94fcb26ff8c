"""The examples do what their docstrings say, with and without ``mpirun``."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.serial, pytest.mark.slow, pytest.mark.xdist_group("launches")]

EXAMPLES = Path(__file__).parent.parent.parent / "jobs" / "examples"
LIMIT_S = 110  # below pytest's own limit; it takes a fifth of that on an idle machine
OUTER = ("PMI", "HYD", "MPI_LOCAL", "OMPI_COMM", "SLURM_")  # of an MPI run around the tests


def run(ranks, name, *words):
    """Return the standard output of an example on ``ranks`` ranks."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, words)]
    if ranks > 1:
        beside = Path(sys.executable).with_name("mpirun")
        mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
        command = [mpirun, "-n", str(ranks), *command]
    env = {k: v for k, v in os.environ.items() if not k.startswith(OUTER)}
    env.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_two_parts_give_the_rows_of_the_whole(ranks):
    out = run(ranks, "two_parts.py", "--batch", 7)

    assert f"7 rows over {ranks} ranks x 2 devices" in out
    assert float(re.search(r"largest difference (\S+)", out)[1]) < 1e-5
    assert "features: model_" in out and "classifier: model_" in out


@pytest.mark.parametrize("ranks", [1, 2])
def test_module_fit_learns_digits(ranks, tmp_path):
    out = run(ranks, "module_fit.py", "--epochs", 2, "--prefix", tmp_path / "m")

    accuracy = [float(found) for found in re.findall(r"validation accuracy (\S+)", out)]
    assert len(accuracy) == 1 and accuracy[0] >= 0.9
    assert "Epoch[1] Batch [40-60]\tSpeed: " in out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "m-0001.params", "m-0002.params", "m-symbol.json",
    ]  # fmt: skip


def test_the_committed_symbol_is_the_one_that_the_example_writes(tmp_path):
    copy = tmp_path / "module_fit.py"
    copy.write_text((EXAMPLES / "module_fit.py").read_text("utf-8"), "utf-8")
    subprocess.run([sys.executable, copy, "--write"], check=True, timeout=LIMIT_S)

    written = (tmp_path / "symbol.json").read_text("utf-8")
    assert written == (EXAMPLES / "symbol.json").read_text("utf-8")


def test_an_lstm_over_ranks_scores_as_on_one():
    said = [
        run(n, "model_parallel_lstm.py", "--epochs", 1, "--hidden", 16, "--length", 4)
        for n in (1, 2)
    ]

    found = [re.findall(r"validation accuracy (\S+) on (\d) ranks", text) for text in said]
    assert [rows[0][1] for rows in found] == ["1", "2"]
    assert found[0][0][0] == found[1][0][0]
