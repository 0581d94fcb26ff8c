"""The batch script, run with a launcher and an ``scontrol`` that write down their arguments."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash"),
]

JOBS = Path(__file__).parents[2] / "jobs"
SCRIPT = JOBS / "train_data_parallel.sbatch"
RECORD = 'printf "%s\\n" "$(basename "$0") $*" >> calls\n'
EXIT = "exit ${LAUNCHER_EXIT:-0}\n"
# Stands for a rank that saves and leaves when it is told to.
UNTIL_TOLD = "trap 'exit 75' USR1; touch ready; while :; do sleep 0.02; done\n"


@pytest.fixture
def site(tmp_path):
    """A directory with fake commands, to submit from."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("srun", "mpirun"):
        fake(commands / name, RECORD + "env > environment\n" + EXIT)
    fake(commands / "scontrol", RECORD)
    shutil.copytree(JOBS / "site", tmp_path / "jobs" / "site")
    return tmp_path


def fake(path, body):
    path.write_text("#!/bin/bash\n" + body)
    path.chmod(0o755)


def environment(site, **changes):
    given = {
        "PATH": f"{site / 'bin'}:/usr/bin:/bin",
        "HOME": str(site),
        "SLURM_JOB_ID": "17",
        "SLURM_NTASKS": "8",
        "SLURM_CPUS_PER_TASK": "4",
    }
    return given | {name: str(value) for name, value in changes.items()}


def submit(site, *arguments, **changes):
    """Run the script as Slurm would, and return its exit code and the commands it called."""
    done = subprocess.run(
        ["bash", SCRIPT, *arguments],
        cwd=site,
        env=environment(site, **changes),
        capture_output=True,
        text=True,
        timeout=60,
    )
    calls = site / "calls"
    return done, calls.read_text().splitlines() if calls.exists() else []


def ended(job):
    """Return the exit code of a job; one that does not end is killed and fails the test."""
    try:
        return job.wait(30)
    finally:
        job.kill()


TRAIN = "python3 -m hpctrain train --run.resume auto"


@pytest.mark.parametrize(
    "path", sorted([*JOBS.rglob("*.sbatch"), *JOBS.rglob("*.sh")]), ids=lambda path: path.name
)
def test_bash_can_read_it(path):
    subprocess.run(["bash", "-n", path], check=True)


def test_srun_starts_the_ranks(site):
    done, calls = submit(site, "run.toml", "--optim.lr", "0.1")

    assert calls == [f"srun --wait=10 {TRAIN} run.toml --optim.lr 0.1"]
    assert (done.returncode, done.stderr) == (0, "")


def test_arguments_with_spaces_stay_whole(site):
    fake(site / "bin" / "srun", 'printf "<%s>" "$@" > calls\n')

    _, calls = submit(site, "my run.toml", "--run.name", "a b")

    assert calls[0].endswith("<my run.toml><--run.name><a b>")


def test_the_mpi_type_is_handed_to_srun(site):
    _, calls = submit(site, HPCTRAIN_SRUN_MPI="pmi2")

    assert calls == [f"srun --wait=10 --mpi=pmi2 {TRAIN}"]


def test_mpirun_starts_as_many_ranks_as_tasks(site):
    _, calls = submit(site, "run.toml", LAUNCH="mpirun")

    assert calls == [f"mpirun -n 8 {TRAIN} run.toml"]


def test_the_environment_of_the_checkout_is_used(site):
    python = site / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    fake(python, EXIT)

    _, calls = submit(site)

    assert calls[0].endswith(" .venv/bin/python -m hpctrain train --run.resume auto")


def test_threads_follow_the_cores_of_a_task(site):
    submit(site)

    told = (site / "environment").read_text().splitlines()
    assert {"SRUN_CPUS_PER_TASK=4", "OMP_NUM_THREADS=4"} <= set(told)
    assert "HDF5_USE_FILE_LOCKING=FALSE" in told


@pytest.mark.parametrize("launch", ["srun", "mpirun"])
@pytest.mark.parametrize("code", [1, 2, 137])
def test_a_failure_is_handed_on(site, launch, code):
    done, calls = submit(site, LAUNCH=launch, LAUNCHER_EXIT=code)

    assert done.returncode == code
    assert len(calls) == 1


@pytest.mark.parametrize("launch", ["srun", "mpirun"])
def test_a_saved_run_is_requeued(site, launch):
    done, calls = submit(site, LAUNCH=launch, LAUNCHER_EXIT=75)

    assert calls[1:] == ["scontrol requeue 17"]
    assert done.returncode == 0


def test_a_task_of_an_array_is_requeued_alone(site):
    array = {"SLURM_ARRAY_JOB_ID": 12, "SLURM_ARRAY_TASK_ID": 3}

    _, calls = submit(site, LAUNCHER_EXIT=75, **array)

    assert calls[1:] == ["scontrol requeue 12_3"]


def test_a_run_that_started_too_often_ends(site):
    done, calls = submit(site, LAUNCHER_EXIT=75, SLURM_RESTART_COUNT=20)

    assert done.returncode == 75
    assert len(calls) == 1


def test_a_site_that_forbids_requeueing_gets_75(site):
    fake(site / "bin" / "scontrol", RECORD + "exit 1\n")

    done, _ = submit(site, LAUNCHER_EXIT=75)

    assert done.returncode == 75


@pytest.mark.parametrize("launch", ["srun", "mpirun"])
def test_a_warning_reaches_the_ranks_and_requeues(site, launch):
    fake(site / "bin" / launch, RECORD + UNTIL_TOLD)
    with subprocess.Popen(
        ["bash", SCRIPT], cwd=site, env=environment(site, LAUNCH=launch)
    ) as job:
        wait_for(site / "ready")
        job.send_signal(signal.SIGUSR1)
        code = ended(job)

    calls = (site / "calls").read_text().splitlines()
    assert (code, calls[1:]) == (0, ["scontrol requeue 17"])


def test_a_second_warning_finds_the_script_waiting(site):
    # The next warning may come as soon as the file is there: by then it must be fatal.
    # Bash forgets a signal that comes while a trap for it still runs: the file is made outside.
    told = "trap 'trap \"exit 75\" USR1; new=1' USR1; touch ready\n"
    body = told + 'while :; do if [ -n "$new" ]; then touch told; new=; fi; sleep 0.02; done\n'
    fake(site / "bin" / "srun", RECORD + body)
    with subprocess.Popen(["bash", SCRIPT], cwd=site, env=environment(site)) as job:
        wait_for(site / "ready")
        job.send_signal(signal.SIGUSR1)
        wait_for(site / "told")
        code = warned_until_it_ends(job)

    assert code == 0
    assert (site / "calls").read_text().splitlines()[1:] == ["scontrol requeue 17"]


def warned_until_it_ends(job):
    """Warn again if the script, too, was still in its trap; return the exit code."""
    for _ in range(60):
        job.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return job.wait(0.5)
    return ended(job)


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come"
        os.sched_yield()


def test_mpich_gets_pmi2(site):
    _, calls = submit(site, HPCTRAIN_SITE="generic-mpich")

    assert calls == [f"srun --wait=10 --mpi=pmi2 {TRAIN}"]


@pytest.mark.parametrize("types, launch", [("none pmi2 pmix", "srun"), ("none pmi2", "mpirun")])
def test_open_mpi_takes_srun_only_with_pmix(site, types, launch):
    listing = f'if [ "$1" = --mpi=list ]; then echo "{types}"; exit; fi\n'
    fake(site / "bin" / "srun", listing + RECORD)

    _, calls = submit(site, HPCTRAIN_SITE="generic-openmpi")

    assert [call.split()[0] for call in calls] == [launch]
    assert ("--mpi=pmix" in calls[0]) == (launch == "srun")


def test_an_unknown_site_is_named(site):
    done, calls = submit(site, HPCTRAIN_SITE="atlantis")

    assert "no file jobs/site/atlantis.sh" in done.stderr
    assert (done.returncode, calls) == (2, [])


def test_an_unknown_launcher_is_named(site):
    done, calls = submit(site, LAUNCH="rocket")

    assert done.stderr == "LAUNCH: got rocket, needed srun or mpirun\n"
    assert (done.returncode, calls) == (2, [])
