import json
import re
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain.comm import world as worlds
from hpctrain.comm.world import start
from hpctrain.errors import CommError, ConfigError


@pytest.fixture
def unwatched(monkeypatch):
    """Start worlds in this process without a thread that outlives the test."""
    monkeypatch.setattr(worlds, "die_with_launcher", lambda: None)
    # A start that fails keeps its hooks, for they are to print why.
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


def test_a_world_knows_where_its_rank_stands(unwatched):
    with start() as world:
        assert (world.rank, world.size) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
        assert (world.local_rank, world.local_size) == (world.rank, world.size)  # one host
        assert world.host == socket.gethostname()
        assert world.hosts == (world.host,)
        assert world.group.size == world.control.size == world.size
        assert world.library.startswith(("MPICH ", "Open MPI v", "Intel"))


def test_a_finished_world_leaves_nothing_behind(unwatched):
    hooks = sys.excepthook, threading.excepthook

    for _ in range(3):
        world = start()
        assert sys.excepthook != hooks[0]
        world.finish()
        world.finish()

    assert (sys.excepthook, threading.excepthook) == hooks


@pytest.mark.mpi(min_size=2)
def test_messages_of_training_and_control_never_meet(unwatched):
    with start() as world:
        if world.rank == 0:
            world.group.send(np.array([1]), 1)
            world.control.send(np.array([2]), 1)
        elif world.rank == 1:
            first, second = np.zeros(1, int), np.zeros(1, int)
            world.control.recv(first, 0)
            world.group.recv(second, 0)
            assert (first[0], second[0]) == (2, 1)


@pytest.mark.serial
@pytest.mark.parametrize("tasks", ["2", "4"])
def test_copies_of_a_single_rank_end_with_a_sentence(environ, tasks):
    script = "from hpctrain.comm.world import start\nstart()\n"
    environ |= {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": tasks}

    ended = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60
    )

    assert ended.returncode == 2
    assert ended.stderr == (
        f"hpctrain: launch: Slurm started {tasks} tasks but MPI sees 1 rank; "
        "use mpirun, or srun --mpi=pmi2 (MPICH) / --mpi=pmix (Open MPI)\n"
    )


@pytest.mark.serial
def test_a_single_rank_may_be_allowed(monkeypatch, unwatched):
    if MPI.COMM_WORLD.size > 1:
        pytest.skip("one rank only")
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")

    with start(allow_singleton=True) as world:
        assert world.size == 1
    with pytest.raises(ConfigError, match="started 4 tasks but MPI sees 1 rank"):
        start()


@pytest.mark.serial
def test_mpi_without_threads_is_refused():
    worlds.check_threads(MPI.THREAD_MULTIPLE)
    with pytest.raises(
        CommError, match="gives thread level serialized, needed multiple; unset"
    ):
        worlds.check_threads(MPI.THREAD_SERIALIZED)


@pytest.mark.serial
@pytest.mark.slow
def test_local_ranks_are_those_of_the_launcher(launch):
    script = """
        import json
        with start() as world:
            found = [world.rank, world.local_rank, world.local_size]
        sys.stdout.write(json.dumps(found) + "\\n")
    """
    ended = launch(3, script).end()

    assert ended.code == 0
    rows = re.findall(r"\[.*?\]", ended.out)  # lines of several ranks may be run into one
    assert sorted(map(json.loads, rows)) == [[r, r, 3] for r in range(3)]
    assert ended.err == ""
