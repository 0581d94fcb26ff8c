"""The batch script and the examples for models in stages."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.serial, pytest.mark.xdist_group("launches")]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "jobs" / "train_pipeline.sbatch"
OUTER = ("PMI", "HYD", "MPI_LOCAL", "OMPI_COMM", "SLURM_")  # of an MPI run around the tests
LIMIT_S = 110


def submit(folder, *arguments, **changes):
    """Run the script with a launcher that prints its arguments and the distribution."""
    commands = folder / "bin"
    commands.mkdir()
    fake = commands / "srun"
    fake.write_text('#!/bin/bash\necho "$@" "on $SLURM_DISTRIBUTION"\n')
    fake.chmod(0o755)
    (folder / "jobs").mkdir()
    shutil.copy(ROOT / "jobs" / "train_data_parallel.sbatch", folder / "jobs")
    env = {"PATH": f"{commands}:/usr/bin:/bin", "HOME": str(folder), "SLURM_NTASKS": "8"}
    return subprocess.run(
        ["bash", SCRIPT, *arguments],
        cwd=folder,
        env=env | changes,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("changes", "stages"),
    [({"SLURM_NTASKS_PER_NODE": "4"}, 4), ({"STAGES": "8"}, 8), ({}, 2)],
)
def test_the_script_spreads_a_model_over_the_ranks_of_a_node(tmp_path, changes, stages):
    done = submit(tmp_path, "run.toml", "--optim.lr", "0.1", **changes)

    assert (done.returncode, done.stderr) == (0, "")
    words = f"--parallel.pipeline {stages} run.toml --optim.lr 0.1 on block"
    assert done.stdout.strip().endswith(f"train --run.resume auto {words}")


def test_the_script_outside_of_the_checkout_says_so(tmp_path):
    done = subprocess.run(
        ["bash", SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S
    )

    assert done.returncode == 2
    assert "submit from the checkout" in done.stderr


@pytest.mark.slow
def test_the_examples_of_the_meshes_come_to_the_same_numbers(tmp_path):
    found = {}
    for name in ("mesh_d4", "mesh_d2_s2", "mesh_s4", "mesh_t2_d2"):
        file = ROOT / "jobs" / "examples" / f"{name}.toml"
        beside = Path(sys.executable).with_name("mpirun")
        mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
        flags = ["--run.max_steps", "10", "--run.dir", tmp_path]
        done = subprocess.run(
            [mpirun, "-n", "4", sys.executable, "-m", "hpctrain", "train", file, *flags],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if not k.startswith(OUTER)}
            | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found[name] = float(re.search(r"train loss +(\S+)", done.stdout)[1])

    assert len(set(found.values())) == 1
