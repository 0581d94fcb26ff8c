"""How many threads of a rank may compute: as many as it has cores to itself."""

import os
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from hpctrain.errors import ConfigError
from hpctrain.graph import threads as kernels
from hpctrain.ops import dnnl

if TYPE_CHECKING:  # importing it starts MPI
    from hpctrain.comm.world import World

__all__ = ["cores_of_rank", "limit_threads"]


def cores_of_rank(masks: list[list[int]], rank: int) -> float:
    """Return how many cores a rank has: each core is shared by those whose mask holds it.

    Parameters
    ----------
    masks : list of list of int
        The cores that each rank of a host may run on.
    rank : int
        Which of them.

    Examples
    --------
    >>> cores_of_rank([[0, 1, 2, 3], [0, 1, 2, 3]], 0)
    2.0
    >>> cores_of_rank([[0, 1], [2, 3]], 1)
    2.0
    """
    return sum(1 / sum(core in mask for mask in masks) for core in masks[rank])


def limit_threads(world: "World", wanted: int) -> tuple[int, float]:
    """Limit the threads of BLAS, OpenMP, oneDNN and compiled kernels on this rank; collective.

    Parameters
    ----------
    world : World
    wanted : int
        Threads of a rank; 0 for as many as it has cores, at least 1.

    Returns
    -------
    threads : int
    cores : float
        Cores that this rank has to itself.

    Raises
    ------
    ConfigError
        If more than one thread is wanted and the ranks of this host have not that many cores.
    """
    mask = sorted(os.sched_getaffinity(0))
    rows = world.control.allgather_obj([world.host, mask])
    here = [row[1] for row in rows if row[0] == world.host]
    before = sum(row[0] == world.host for row in rows[: world.rank])
    cores = cores_of_rank(here, before)
    threads = wanted or max(1, int(cores + 1e-9))
    if threads > 1 and threads > cores + 1e-9:
        raise ConfigError(
            f"device.threads: {len(here)} ranks x {threads} threads on {world.host} are more "
            f"than its cores ({cores:g} for each rank); set device.threads lower, or 0"
        )
    threadpool_limits(threads)
    kernels.limit(threads)
    dnnl.limit(threads)  # OpenMP's limit holds for the thread that sets it, not for lanes
    return threads, cores
