"""Groups to test on, and a way to start small scripts on several ranks."""

import os
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from mpi4py import MPI

from hpctrain.comm.group import Group

LIMIT_S = 60  # for what should take two seconds, on a machine that is busy
OUTER = ("PMI", "HYD", "MPI_LOCAL", "OMPI_", "PRTE_", "SLURM_")
SETTINGS = ("OMPI_ALLOW", "OMPI_MCA", "PRTE_MCA")

# Open MPI's launcher hides its own settings from the ranks, so a second one needs them again.
ROOM = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@pytest.fixture
def world():
    """All ranks."""
    with Group(MPI.COMM_WORLD.Dup()) as group:
        yield group


@pytest.fixture(params=["self", "world", "split"])
def comm(request):
    """MPI's own communicator, the oracle: of size 1, p and about p / 2."""
    whole = MPI.COMM_WORLD
    if request.param == "split":
        made = whole.Split(whole.rank % 2, whole.rank)
    else:
        made = (MPI.COMM_SELF if request.param == "self" else whole).Dup()
    yield made
    made.Free()


@pytest.fixture(params=[2**31 - 1, 3], ids=["whole", "pieces"])
def group(request, comm):
    """A group of the ranks of ``comm``; once with messages cut into pieces of 3 elements."""
    with Group(comm.Dup(), limit=request.param) as made:
        yield made


def outside():
    """The environment without what a launcher put there: the next one must not join its run."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(SETTINGS) or not name.startswith(OUTER)
    }


@dataclass
class Ended:
    """What a launch came to."""

    code: int
    out: str
    err: str
    seconds: float


class Launch:
    """A script on several ranks, under way."""

    def __init__(self, folder, ranks, script, wrapper=()):
        self.folder = folder
        path = folder / "script.py"
        path.write_text(PROLOGUE + textwrap.dedent(script))
        beside = Path(sys.executable).with_name("mpirun")
        mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [mpirun, "-n", str(ranks), *wrapper, sys.executable, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=outside() | ROOM,
        )

    def ready(self, ranks):
        """Wait until that many ranks stand where the script calls ``ready()``; their pids."""
        end = time.monotonic() + LIMIT_S
        while len(files := sorted(self.folder.glob("ready-*"))) < ranks:
            assert time.monotonic() < end, f"only {len(files)} of {ranks} ranks came up"
            time.sleep(0.02)
        self.started = time.monotonic()
        return [int(path.read_text()) for path in files]

    def end(self):
        """Wait for the launcher; how long it took since the ranks were ready, if asked."""
        try:
            out, err = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
            self.process.kill()
            out, err = self.process.communicate()
            pytest.fail(f"hangs; it wrote:\n{out}\n{err}")
        return Ended(self.process.returncode, out, err, time.monotonic() - self.started)


PROLOGUE = """\
import os, sys, threading, time
from pathlib import Path
import numpy as np
from hpctrain.comm import guard
from hpctrain.comm.world import start
from hpctrain.errors import CommError, ConfigError, DataError

def ready(rank):
    Path(f"new-{rank}").write_text(str(os.getpid()))
    os.rename(f"new-{rank}", f"ready-{rank}")

def work(world):  # what the others do meanwhile
    while True:
        world.group.allreduce(np.ones(4))
        time.sleep(0.01)

"""


@pytest.fixture
def environ():
    """An environment that no launcher has touched."""
    return outside()


@pytest.fixture
def launch(tmp_path):
    """Start ``launch(ranks, script)`` under mpirun."""
    return lambda ranks, script, wrapper=(): Launch(tmp_path, ranks, script, wrapper)
