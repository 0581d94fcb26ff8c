"""The Makefile's own decisions, read from what it would run or says at once."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(shutil.which("make") is None, reason="needs make"),
]

ROOT = Path(__file__).parents[1]


@pytest.fixture
def checkout(tmp_path):
    """A bare checkout, as far as make looks at it."""
    for name in ("Makefile", "setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "bin").mkdir()
    for name in ("sh", "cat", "sed", "expand", "rm"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    return tmp_path


def make(checkout, *arguments):
    environment = {"PATH": str(checkout / "bin"), "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(
        [shutil.which("make"), "--no-print-directory", *arguments],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def program(path, body="exit 0"):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_help_lists_what_a_newcomer_needs(checkout):
    listed = [line.split()[1] for line in make(checkout, "help").stdout.splitlines()]

    assert {"env", "train", "test", "lint", "format", "repeat", "clean"} <= set(listed)


def test_the_wheels_mpi_is_taken_where_there_is_no_other(checkout):
    planned = make(checkout, "-n", "train").stdout

    assert ".[test,dev,mpich]" in planned
    assert ".venv/bin/mpiexec -n 2 .venv/bin/python -m hpctrain\n" in planned


@pytest.mark.parametrize("name", ["mpiexec", "mpirun"])
def test_the_sites_mpi_comes_first(checkout, name):
    launcher = program(checkout / "bin" / name)

    planned = make(checkout, "-n", "train", "RANKS=5").stdout

    assert "mpich]" not in planned
    assert f"{launcher} -n 5 .venv/bin/python -m hpctrain\n" in planned


def test_the_suite_runs_on_one_to_four_ranks(checkout):
    planned = make(checkout, "-n", "test", "MPIEXEC=launch").stdout.splitlines()
    runs = [line for line in planned if "-m pytest" in line]

    assert "launch" not in runs[0]
    assert [line.split("launch -n ")[1][0] for line in runs[1:]] == ["2", "3", "4"]
    assert all(line.startswith("timeout ") for line in runs)


def test_an_old_python_is_refused(checkout):
    old = program(checkout / "bin" / "old", '[ "$1" = -V ] && echo Python 3.9.1; exit 1')

    done = make(checkout, "env", f"PYTHON={old}")

    assert f"make env: {old} is Python 3.9.1, hpctrain needs Python 3.11" in done.stderr
    assert done.returncode != 0
    assert not (checkout / ".venv").exists()


def test_a_python_without_ensurepip_is_refused(checkout):
    bare = program(checkout / "bin" / "bare", 'case "$2" in *ensurepip*) exit 1;; esac')

    done = make(checkout, "env", f"PYTHON={bare}")

    assert "has no ensurepip" in done.stderr
    assert done.returncode != 0


@pytest.fixture
def ready(checkout):
    """A checkout whose environment is there, with a Python that does nothing."""
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    program(programs / "python")
    (checkout / ".venv" / "installed").touch()
    for name in ("timeout", "tr", "cut"):
        (checkout / "bin" / name).symlink_to(shutil.which(name))
    return checkout


def test_a_launcher_of_another_mpi_is_refused(ready):
    """Each process then believes that it is alone."""
    launcher = program(ready / "bin" / "mpiexec", "echo 1; echo 1")

    done = make(ready, "env")

    assert f"two ranks started by {launcher} said '1 1 ', needed '2 2'" in done.stderr
    assert done.returncode != 0


def test_a_launcher_that_fits_is_asked_once(ready):
    program(ready / "bin" / "mpiexec", "echo asked >> asked; echo 2; echo 2")

    codes = [make(ready, "env").returncode for _ in range(2)]

    assert codes == [0, 0]
    assert (ready / "asked").read_text() == "asked\n"
