import subprocess
import sys

import pytest

from hpctrain.comm import launch
from hpctrain.errors import ConfigError

pytestmark = pytest.mark.serial

OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "PMIX_RANK": "2",
}
MPICH = {"PMI_SIZE": "4", "PMI_RANK": "2", "MPI_LOCALRANKID": "0"}
SRUN = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
BATCH = {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({"HOME": "/root"}, None),
        (OPEN_MPI, ("Open MPI", 4, 2, 1)),
        (MPICH, ("MPICH", 4, 2, 0)),
        (SRUN, ("Slurm", 4, 3, 1)),
        (BATCH, ("Slurm", 8, 0, None)),
        ({"PMIX_RANK": "2"}, ("PMIx", 3, 2, None)),
        ({"SLURM_NTASKS": "8"}, None),
        ({"PMI_SIZE": "", "PMI_RANK": "x"}, None),
    ],
    ids=lambda value: "-".join(map(str, value)) if value else "none",
)
def test_the_launcher_is_named_with_size_and_rank(environ, found):
    launched = launch.detect(environ)

    seen = launched and (launched.launcher, launched.size, launched.rank, launched.local_rank)
    assert seen == found


def test_the_innermost_launcher_counts():
    # hydra starts one proxy on each of two nodes through srun, and two ranks under each.
    inside = {**MPICH, "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "16", "SLURM_PROCID": "1"}

    assert launch.detect(inside).size == 4
    launch.check_size(4, inside)


@pytest.mark.parametrize("environ", [{}, OPEN_MPI, MPICH, SRUN, {"PMIX_RANK": "1"}])
def test_a_whole_launch_is_accepted(environ):
    launch.check_size(4, environ)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            SRUN,
            "launch: Slurm started 4 tasks but MPI sees 1 rank; use mpirun, or srun --mpi=pmi2",
        ),
        (BATCH, "launch: Slurm started 8 tasks but MPI sees 1 rank; use mpirun"),
        (
            MPICH,
            "launch: MPICH started 4 tasks but MPI sees 1 rank; start it with the mpirun of",
        ),
        (OPEN_MPI, "launch: Open MPI started 4 tasks but MPI sees 1 rank; start it with"),
        (
            {"PMIX_RANK": "1"},
            "launch: PMIx started at least 2 tasks but MPI sees 1 rank; use mpirun",
        ),
    ],
    ids=["srun", "batch", "mpich", "open-mpi", "pmix"],
)
def test_copies_of_a_single_rank_are_refused(environ, message):
    with pytest.raises(ConfigError) as caught:
        launch.check_size(1, environ)

    assert str(caught.value).startswith(message)
    launch.check_size(1, environ, allow_singleton=True)


def test_a_launch_smaller_than_its_allocation_is_accepted_but_not_a_part_of_a_step():
    launch.check_size(2, BATCH)
    with pytest.raises(ConfigError, match="MPI sees 2 ranks"):
        launch.check_size(2, SRUN)
    with pytest.raises(ConfigError, match="MPI sees 2 ranks"):
        launch.check_size(2, SRUN, allow_singleton=True)


def test_looking_at_the_launcher_starts_no_mpi():
    code = (
        "import sys, hpctrain.comm, hpctrain.comm.launch;"
        "assert not [name for name in sys.modules if name.startswith('mpi4py')]"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
