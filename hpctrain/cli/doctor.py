"""``doctor``: what is installed, how this process was started, and what is wrong with that.

Without a launcher it starts no MPI, so that it works on a login node; under ``mpirun`` all
ranks take part and rank 0 speaks.
"""

import contextlib
import json as json_
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from threadpoolctl import threadpool_info

from hpctrain import backend
from hpctrain.cli.arguments import call
from hpctrain.cli.checks import Check, Rows, checks
from hpctrain.cli.threads import cores_of_rank, pinned_by, pins_of
from hpctrain.comm import installed, launch
from hpctrain.io.filters import filters, hdf5_version
from hpctrain.ops import dnnl
from hpctrain.ops.dnnl_narrow import describe_narrow
from hpctrain.train.console import Console
from hpctrain.train.rundir import versions

__all__ = ["run"]

SHOWN = (
    "SLURM_", "PMI", "HYDI_", "OMPI_", "PRTE_", "MPICH_", "MPI4PY_", "I_MPI_", "UCX_", "FI_",
    "NCCL_", "CUDA_", "OMP_", "OPENBLAS_", "MKL_", "HDF5_", "HPCTRAIN_", "PYTHONPATH",
)  # fmt: skip
SECRET = ("TOKEN", "JWT", "KEY", "SECRET", "PASS")


def run(argv: Sequence[str]) -> int:
    """Report, and return 1 if a check failed; collective over all ranks that were started."""
    return int(call({"run": doctor}, ["run", *argv], "doctor"))


def doctor(json: bool = False) -> int:
    """Show what is installed and how it was started, and check it.

    Args:
        json: print one JSON object instead of text.
    """
    started = launch.detect(os.environ)
    with contextlib.ExitStack() as stack:
        library, rank, rows = _gather(started is not None, stack)
        found = checks(rows, library, os.environ)
        # Copies that do not know of each other all are rank 0 to MPI.
        if not rank and (started is None or not started.rank or len(rows) > 1):
            _tell(_facts(library), rows, found, json)
        return int(any(check.verdict == "FAIL" for check in found))


def _gather(started: bool, stack: contextlib.ExitStack) -> tuple[str, int, Rows]:
    """Return the MPI library (empty if it cannot be loaded), this rank, and facts by rank."""
    library = installed.library(start=started)
    if not started or not library:
        return library, 0, [_row(0)]
    world = stack.enter_context(installed.world(allow_singleton=True))
    return library, world.rank, world.control.allgather_obj(_row(world.local_rank))


def _row(local_rank: int) -> dict[str, Any]:
    """Return the facts of this rank."""
    return {
        "host": platform.node(),
        "local_rank": local_rank,
        "pid": os.getpid(),
        "cores": sorted(os.sched_getaffinity(0)),
        "cpus": os.cpu_count(),
        "pinned_by": pinned_by(os.environ),
        "threads": max((p["num_threads"] for p in threadpool_info()), default=1),
        "gpus": backend.gpu_count(),
        "versions": {**versions(), "hdf5": hdf5_version()},
    }


def _facts(library: str) -> dict[str, Any]:
    """Return the facts of this host."""
    pools = [
        f"{p['internal_api']} {p['version']}, {p['num_threads']} thread(s)"
        for p in threadpool_info()
    ]
    beside = Path(sys.executable).with_name("mpirun")
    memory = psutil.virtual_memory()
    shm = shutil.disk_usage("/dev/shm") if os.path.isdir("/dev/shm") else None
    return {
        **versions(),
        "executable": sys.executable,
        "mpi": library or "cannot be loaded",
        "libmpi": next(iter(_loaded("libmpi")), "not loaded"),
        "mpirun": shutil.which("mpirun") or (str(beside) if beside.exists() else "not in PATH"),
        "blas": "; ".join(pools) or "unknown",
        "kernels": dnnl.describe(),
        "bf16": describe_narrow(),
        "hdf5": hdf5_version(),
        "filters": ", ".join(filters()),
        "gpu": f"{backend.gpu_count()} visible, CuPy {_cupy() or 'not installed'}",
        "cpu": f"{os.cpu_count()} cores, {memory.total / 2**30:.1f} GiB of memory",
        "/dev/shm": f"{shm.free / 2**20:,.0f} of {shm.total / 2**20:,.0f} MiB free"
        if shm
        else "missing",
        "directory": f"{os.getcwd()} on {_file_system(Path.cwd())}",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _cupy() -> str:
    packages = ("cupy", "cupy-cuda12x", "cupy-cuda13x")
    return next((found for p in packages if (found := _version(p))), "")


def _loaded(name: str) -> list[str]:
    """Return the paths of loaded libraries whose file name begins with ``name``."""
    with contextlib.suppress(psutil.Error):
        paths = (Path(m.path) for m in psutil.Process().memory_maps())
        return [str(path) for path in paths if path.name.startswith(name)]
    return []


def _file_system(path: Path) -> str:
    mounts = {Path(p.mountpoint): p.fstype for p in psutil.disk_partitions(all=True)}
    return next((mounts[p] for p in (path, *path.parents) if p in mounts), "unknown")


def _tell(facts: dict[str, Any], rows: Rows, found: list[Check], as_json: bool) -> None:
    shown = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(SHOWN) and not any(word in name for word in SECRET)
    }
    if as_json:
        judged = [check._asdict() for check in found]
        whole = {"facts": facts, "environment": shown, "ranks": rows, "checks": judged}
        print(json_.dumps(whole), flush=True)
        return
    console = Console()
    console.facts("doctor: what is here", facts)
    console.facts("environment", shown)
    table = {
        f"rank {rank}": f"{row['host']}, local rank {row['local_rank']}, pid {row['pid']}, "
        f"cores {_runs(row['cores'])}, {row['threads']} BLAS thread(s) now, "
        f"{_wanted(rows, rank)}, {row['gpus']} GPU(s)"
        for rank, row in enumerate(rows)
    }
    console.facts("ranks", table)
    for check in found:
        console.line(f"{f'[{check.verdict}]':<6} {check.name}: {check.text}")


def _wanted(rows: Rows, rank: int) -> str:
    """Say how many threads a rank takes if ``device.threads`` is 0, and where they run."""
    row = rows[rank]
    here = [other["cores"] for other in rows if other["host"] == row["host"]]
    before = sum(other["host"] == row["host"] for other in rows[:rank])
    threads = max(1, int(cores_of_rank(here, before) + 1e-9))
    pins = pins_of(here, before, threads, row["cpus"], row["pinned_by"])
    where = f"pinned to cores {_runs([*pins.cores])}" if pins.cores else "not pinned"
    why = f" ({pins.reason})" if pins.reason and threads > 1 else ""
    return f"{threads} of every kind in a run, {where}{why}"


def _runs(numbers: list[int]) -> str:
    """Write ``[0, 1, 2, 5]`` as ``0-2,5``."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in zip(starts, ends, strict=True))
