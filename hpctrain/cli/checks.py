"""What ``doctor`` looks for: each check is a verdict on facts, and what to do about it."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hpctrain.cli.threads import cores_of_rank
from hpctrain.comm import launch
from hpctrain.comm.wording import spread
from hpctrain.errors import ConfigError

__all__ = ["Check", "Rows", "checks"]

SHM_PER_RANK = 64 * 2**20  # what MPI libraries ask for, about
Rows = list[dict[str, Any]]


class Check(NamedTuple):
    """One verdict, and what to do about it."""

    verdict: Literal["OK", "WARN", "FAIL"]
    name: str
    text: str


def checks(rows: Rows, library: str, environ: Mapping[str, str]) -> list[Check]:
    """Judge the facts of all ranks.

    Parameters
    ----------
    rows : list of dict
        The facts of each rank, in order.
    library : str
        The MPI library; empty if it cannot be loaded.
    environ : mapping of str to str
        The environment.
    """
    return [
        _mpi(library),
        _size(rows, environ),
        *_on_hosts(rows),
        _versions(rows),
        _locks(),
        _shm(rows),
        _gpu(rows),
    ]


def _mpi(library: str) -> Check:
    if library:
        return Check("OK", "mpi", library)
    return Check(
        "FAIL", "mpi", "mpi4py cannot load an MPI library; pip install 'hpctrain[mpich]', or "
        "load the site's MPI module",
    )  # fmt: skip


def _size(rows: Rows, environ: Mapping[str, str]) -> Check:
    try:
        launch.check_size(len(rows), environ)
    except ConfigError as error:
        return Check("FAIL", "launch", str(error).removeprefix("launch: "))
    started = launch.detect(environ)
    by = started.launcher if started else "no launcher"
    return Check("OK", "launch", f"{len(rows)} rank(s), started by {by}")


def _on_hosts(rows: Rows) -> Iterator[Check]:
    """Check cores and threads, host by host; the first host with a fault speaks for all."""
    sharing, crowded = None, None
    for host in dict.fromkeys(row["host"] for row in rows):
        here = [row for row in rows if row["host"] == host]
        masks = [row["cores"] for row in here]
        cores = len({core for mask in masks for core in mask})
        share = min(cores_of_rank(masks, rank) for rank in range(len(here)))
        threads = sum(row["threads"] for row in here)
        if share < min(1, cores / len(here)) - 1e-9:
            sharing = sharing or (
                f"{host}: ranks overlap on some of {cores} cores while others are free; bind "
                "them apart, by mpirun --bind-to core or srun --cpu-bind=cores"
            )
        elif share < 1 - 1e-9:
            sharing = sharing or f"{host}: {len(here)} ranks share {cores} cores; start fewer"
        if threads > cores:
            crowded = crowded or (
                f"{host}: {len(here)} rank(s) x {here[0]['threads']} threads on {cores} cores; "
                "train lowers this by itself, elsewhere set OMP_NUM_THREADS"
            )
    yield (
        Check("WARN", "cores", sharing)
        if sharing
        else Check("OK", "cores", "one or more for each rank")
    )
    yield (
        Check("WARN", "threads", crowded)
        if crowded
        else Check("OK", "threads", "no more than cores")
    )


def _versions(rows: Rows) -> Check:
    for name in rows[0]["versions"]:
        values = [row["versions"].get(name, "none") for row in rows]
        if len(set(values)) > 1:
            text = f"{name} is {spread(values)}; start all ranks from one environment"
            return Check("FAIL", "versions", text)
    return Check("OK", "versions", "equal on all ranks")


def _locks() -> Check:
    """Try a lock where the run directories go."""
    try:
        with tempfile.TemporaryFile(dir=".") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        text = f"no locks in {os.getcwd()} ({error.strerror}): nothing keeps two runs of one "
        return Check("WARN", "locks", f"{text}name apart; set --run.dir to another file system")
    return Check("OK", "locks", f"work in {os.getcwd()}")


def _shm(rows: Rows) -> Check:
    free = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    ranks = sum(row["host"] == rows[0]["host"] for row in rows)
    text = f"{free / 2**20:,.0f} MiB of /dev/shm free for {ranks} rank(s)"
    if free >= SHM_PER_RANK * ranks:
        return Check("OK", "/dev/shm", text)
    return Check("WARN", "/dev/shm", f"{text}; make it larger, in a container by --shm-size")


def _gpu(rows: Rows) -> Check:
    if any(row["gpus"] for row in rows):
        return Check("OK", "gpu", f"{spread([str(row['gpus']) for row in rows])}")
    if Path("/proc/driver/nvidia/version").exists():
        return Check(
            "WARN", "gpu", "there is a driver, but CuPy sees no GPU; pip install "
            "'hpctrain[gpu]', and look at CUDA_VISIBLE_DEVICES",
        )  # fmt: skip
    return Check("OK", "gpu", "none")
