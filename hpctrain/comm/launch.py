"""What the environment says about how this process was started.

Pure functions over a mapping such as ``os.environ``; no MPI, so that they run on a login node
and before ``MPI_Init``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hpctrain.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Launch:
    """How this process was started, as far as its environment tells."""

    launcher: str
    """``Open MPI``, ``MPICH`` (also Intel MPI and Slurm's PMI-2), ``PMIx`` or ``Slurm``."""
    size: int | None
    """How many tasks were started together, or None."""
    rank: int | None
    local_rank: int | None
    exact: bool
    """Whether ``size`` counts this very launch, and not the whole allocation."""


@dataclass(frozen=True, slots=True)
class _Dialect:
    launcher: str
    size: str
    rank: str
    local_rank: str
    exact: bool = True


# Innermost first: inside an allocation mpirun's own count is right, Slurm's is the whole job,
# and Slurm's step count is that of the proxies which mpirun started through srun.
_DIALECTS = (
    _Dialect(
        "Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"
    ),
    _Dialect("MPICH", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
    _Dialect("Slurm", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),
    _Dialect("Slurm", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", exact=False),
)


def detect(environ: Mapping[str, str]) -> Launch | None:
    """Tell which launcher started this process.

    Parameters
    ----------
    environ : mapping of str to str
        The environment of the process.

    Returns
    -------
    Launch or None
        None when nothing says that a launcher was used.
    """
    for dialect in _DIALECTS:
        size, rank = _number(environ, dialect.size), _number(environ, dialect.rank)
        if size is not None and (rank is not None or dialect.launcher != "Slurm"):
            local_rank = _number(environ, dialect.local_rank)
            return Launch(dialect.launcher, size, rank, local_rank, dialect.exact)
    rank = _number(environ, "PMIX_RANK")
    if rank is not None:
        # PMIx names no size; there are at least as many tasks as this rank needs before it.
        return Launch("PMIx", rank + 1, rank, None, exact=True)
    return None


def check_size(actual: int, environ: Mapping[str, str], allow_singleton: bool = False) -> None:
    """Refuse to run when more tasks were started than MPI sees.

    This is what happens when a program of one MPI is started by the launcher of another, or
    by a plain ``srun``: n copies of a run of one rank, all of which write the same files.

    Parameters
    ----------
    actual : int
        Size of ``COMM_WORLD``.
    environ : mapping of str to str
        The environment of the process.
    allow_singleton : bool
        Let one rank run alone, whatever the environment says.

    Raises
    ------
    ConfigError
        If the environment names more than ``actual`` tasks.
    """
    launch = detect(environ)
    if launch is None or launch.size is None or (allow_singleton and actual == 1):
        return
    # The size of an allocation may rightly be larger than that of a launch inside it.
    if actual >= launch.size or (not launch.exact and actual > 1):
        return
    at_least = "at least " if launch.launcher == "PMIx" else ""
    raise ConfigError(
        f"launch: {launch.launcher} started {at_least}{launch.size} tasks but MPI sees "
        f"{actual} rank{'s' if actual != 1 else ''}; {_remedy(launch.launcher)}"
    )


def _remedy(launcher: str) -> str:
    if launcher in ("Slurm", "PMIx"):
        return "use mpirun, or srun --mpi=pmi2 (MPICH) / --mpi=pmix (Open MPI)"
    return (
        "start it with the mpirun of the MPI that mpi4py loads (python -m hpctrain doctor "
        "names it), or srun --mpi=pmi2 (MPICH) / --mpi=pmix (Open MPI)"
    )


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None


def servers(environ: Mapping[str, str]) -> int:
    """Return how many ranks are to serve key-value stores, by ``HPCTRAIN_SERVERS``.

    Raises
    ------
    ConfigError
        If that is no whole number of at least 0.

    Examples
    --------
    >>> servers({}), servers({"HPCTRAIN_SERVERS": "2"})
    (0, 2)
    """
    text = environ.get("HPCTRAIN_SERVERS", "0")
    if not text.isdecimal():
        raise ConfigError(f"HPCTRAIN_SERVERS: got {text!r}, needed a whole number")
    return int(text)
