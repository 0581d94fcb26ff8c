"""Which MPI library there is; found out without starting it, if need be."""

import importlib
from typing import Any

import mpi4py

__all__ = ["keep_from_starting", "library", "world"]


def library(start: bool) -> str:
    """Return name and version of the MPI library; empty if none can be loaded.

    Parameters
    ----------
    start : bool
        Whether to call ``MPI_Init``, without which there is only a name.  It ends the process
        on some login nodes, and inside an ``srun`` shell.
    """
    mpi4py.rc.initialize = start
    try:
        importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError):
        return ""
    return str(importlib.import_module("hpctrain.comm.world").library())


def keep_from_starting() -> None:
    """Let modules that need MPI be imported, for their help, without ``MPI_Init``."""
    mpi4py.rc.initialize = False


def world(allow_singleton: bool = False) -> Any:
    """Return `hpctrain.comm.world.start`'s world; imports MPI no earlier than now."""
    return importlib.import_module("hpctrain.comm.world").start(allow_singleton)
