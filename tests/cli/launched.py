"""The command line as people start it: under ``mpirun``, in a folder of its own."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

LIMIT_S = 90  # for what should take a few seconds, on a machine that is busy
OUTER = ("PMI", "HYD", "MPI_LOCAL", "OMPI_", "PRTE_", "SLURM_", "HPCTRAIN_", "TEST_")
SETTINGS = ("OMPI_ALLOW", "OMPI_MCA", "PRTE_MCA")
ROOT = Path(__file__).parents[2]
ROOM = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    # For the models in probing.py, and for the package that these tests belong to.
    "PYTHONPATH": f"{Path(__file__).parent}:{ROOT}",
}


def outside():
    """The environment without what a launcher put there: the next one must not join its run."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(SETTINGS) or not name.startswith(OUTER)
    } | ROOM


@dataclass
class Ended:
    """What a launch came to."""

    code: int
    out: str
    err: str
    seconds: float  # since the ranks reached what was waited for, else since the start

    @property
    def said(self):
        return self.out + self.err


class Launch:
    """The command line on several ranks, under way; ``ranks`` 0 starts it without launcher.

    ``TEST_MPIRUN`` in ``env`` are words for the launcher.
    """

    def __init__(self, folder, ranks, words, env):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        beside = Path(sys.executable).with_name("mpirun")
        mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
        more = env.get("TEST_MPIRUN", "").split()
        start = [mpirun, *more, "-n", str(ranks)] if ranks else []
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [*start, sys.executable, "-m", "hpctrain", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=outside() | {"TEST_FOLDER": str(folder)} | env,
        )

    def reached(self):
        """Wait until the model has come to the call that ``TEST_FAULT`` names."""
        end = time.monotonic() + LIMIT_S
        while not (self.folder / "reached").exists():
            assert time.monotonic() < end, "the run does not come to the call"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)
        self.started = time.monotonic()

    def pids(self):
        """The process ids of the ranks, by rank."""
        files = sorted(self.folder.glob("pid-*"))
        return [int(path.read_text()) for path in files]

    def calls(self):
        """How often each rank has called the model, of those that ended in order."""
        return [int(path.read_text()) for path in sorted(self.folder.glob("calls-*"))]

    def end(self):
        """Wait for the launcher."""
        try:
            out, err = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            out, err = self.kill()
            pytest.fail(f"hangs; it wrote:\n{out}\n{err}")
        return Ended(self.process.returncode, out, err, time.monotonic() - self.started)

    def kill(self):
        """End all processes that are left, and return what they wrote."""
        if self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
            self.process.kill()
        return self.process.communicate()


def records(path):
    """The objects of a ``metrics.jsonl``."""
    return [json.loads(line) for line in path.read_text().splitlines()]
