"""How many threads of a rank may compute, and where: as many as it has cores to itself."""

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from threadpoolctl import threadpool_info, threadpool_limits

from hpctrain.engine import Engine
from hpctrain.errors import ConfigError
from hpctrain.graph import threads as kernels
from hpctrain.ops import dnnl

if TYPE_CHECKING:  # importing it starts MPI
    from hpctrain.comm.world import World

__all__ = ["Limits", "Pins", "cores_of_rank", "limit_threads", "pinned_by", "pins_of", "told"]

PINNING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")


class Pins(NamedTuple):
    """The cores that threads are pinned to, one each; or why they are not."""

    cores: tuple[int, ...] = ()
    reason: str = ""


class Limits(NamedTuple):
    """What a rank may take.

    Attributes
    ----------
    threads : int
        Of one kernel.
    cores : float
        Cores that the rank has to itself.
    pins : Pins
    """

    threads: int
    cores: float
    pins: Pins


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


def pinned_by(environ: Mapping[str, str]) -> str:
    """Return the environment variable that already says where OpenMP's threads run, or ''."""
    return next((name for name in PINNING if name in environ), "")


def pins_of(
    masks: list[list[int]], rank: int, threads: int, cpus: int, asked: str = ""
) -> Pins:
    """Return where the threads of a rank are pinned.

    Not where others may compute on the same cores: they might be pinned to the same of them.

    Parameters
    ----------
    masks, rank
        See `cores_of_rank`.
    threads : int
        Of one kernel.
    cpus : int
        Cores of the host.
    asked : str
        See `pinned_by`.

    Examples
    --------
    >>> pins_of([[0, 1], [2, 3]], 1, 2, 4)
    Pins(cores=(2, 3), reason='')
    >>> pins_of([[0, 1, 2, 3]], 0, 2, 4)
    Pins(cores=(), reason='other programs may take the same cores')
    """
    mask = masks[rank]
    if asked:
        return Pins((), f"{asked} is set")
    if any(set(mask) & set(other) for i, other in enumerate(masks) if i != rank):
        return Pins((), "ranks share cores")
    if threads == 1:
        return Pins((), "one thread")
    if threads < len(mask) == cpus:
        return Pins((), "other programs may take the same cores")
    return Pins(tuple(mask[:threads]))


def limit_threads(world: "World", wanted: int, pin: str = "none") -> Limits:
    """Limit the threads of BLAS, OpenMP, oneDNN and compiled kernels on this rank; collective.

    Parameters
    ----------
    world : World
    wanted : int
        Threads of a rank; 0 for as many as it has cores, at least 1.
    pin : {"none", "auto"}
        ``auto``: OpenMP pins them where `pins_of` says so; before it is loaded.

    Returns
    -------
    Limits

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
    pins = Pins((), "device.pin is none")
    if pin == "auto":
        pins = pins_of(here, before, threads, os.cpu_count() or 1, pinned_by(os.environ))
    if reason := kernels.place(pins.cores):
        pins = Pins((), reason)
    threadpool_limits(threads)
    _pin_blas(pins.cores)
    kernels.limit(threads)
    dnnl.limit(threads)  # OpenMP's limit holds for the thread that sets it, not for lanes
    return Limits(threads, cores, pins)


def _pin_blas(cores: Sequence[int]) -> None:
    """Pin the threads that help OpenBLAS, which are its own; of other libraries they stay free.

    The one that calls it is pinned with its kernels.
    """
    for pool in threadpool_info():
        pin = getattr(ctypes.CDLL(pool["filepath"]), "openblas_setaffinity", None)
        if pin is None or pool["threading_layer"] != "pthreads":
            continue
        for index, core in enumerate(cores[1:]):
            mask = (ctypes.c_uint64 * (core // 64 + 1))()
            mask[core // 64] = 1 << core % 64
            pin(index, ctypes.c_size_t(ctypes.sizeof(mask)), mask)


def told(limits: Limits, lanes: Engine) -> str:
    """Start the threads of the compute lane, and say how many they are and where they run."""
    words = f"{limits.threads} thread(s) a rank"
    mask = os.sched_getaffinity(0)
    if limits.threads == 1:
        return words + (f", on core {min(mask)} as started" if len(mask) == 1 else "")
    if not limits.pins.cores:
        return f"{words}, not pinned: {limits.pins.reason}"
    found: list[tuple[int, ...]] = []
    seen = lanes.variable("threads")
    lanes.push(lambda: found.extend(kernels.masks(limits.threads)), writes=[seen], name="pin")
    lanes.wait(seen)
    return f"{words}, pinned to cores {', '.join('-'.join(map(str, mask)) for mask in found)}"
