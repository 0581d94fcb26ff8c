"""``--exchange.tune``: try ways of exchanging gradients, and keep the best for the next run.

What is tried is timed on a batch of the run itself, with a learning rate of zero, so that
nothing is learned by it (`hpctrain.cli.trials`). In a pipeline schedules are tried too: they
give the same numbers. The number of micro-batches is left alone, for some layers look at one
at a time.
"""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain.backend import Device
from hpctrain.cli import build, pipeline
from hpctrain.cli.exchange import OPEN, PAUSE_S, Traffic, settled
from hpctrain.cli.trials import SETTINGS, Bench, MeshBench, batch_of
from hpctrain.comm.guard import agreed
from hpctrain.comm.mesh import Mesh
from hpctrain.comm.world import World
from hpctrain.config import Config
from hpctrain.io import Loader, Records

__all__ = ["Trial", "candidates", "search", "traffic_of", "tuned"]

MARGIN = 0.02  # of the step: less is noise, and what is simpler stays
SLICES = (1.0, 0.25, 4.0)
IN_FLIGHT = (8, 4, 2)
SCHEDULES = ("zero_bubble", "gpipe")  # beside 1f1b, at the same cut


@dataclass(frozen=True, slots=True)
class Trial:
    """One way that was tried.

    Attributes
    ----------
    traffic : Traffic
    step_s, exposed_s : float
        Time of a step, and what of it is beyond computing alone, where that can be timed.
    """

    traffic: Traffic
    step_s: float
    exposed_s: float


def candidates(setting: str, best: Traffic, several_hosts: bool) -> list[Traffic]:
    """Return what to try of one setting beside the best so far.

    Parameters
    ----------
    setting : {"schedule", "path", "overlap", "slice_mib", "in_flight"}
    best : Traffic
    several_hosts : bool

    Notes
    -----
    A schedule, path or overlap that the user has chosen stays, and MPI's sums are never
    compressed.
    """
    paths = ("direct", "mpi") if best.wire == "none" else ("direct",)
    values: dict[str, tuple[Any, ...]] = {
        "schedule": SCHEDULES if best.schedule == OPEN else (),
        "path": paths if best.path == "auto" else (),
        "overlap": ("on", "off") if best.overlap == "auto" else (),
        "slice_mib": SLICES,
        "in_flight": IN_FLIGHT if several_hosts or best.overlap != "off" else (),
    }
    fitted = best.fitted and setting != "slice_mib"
    found = [replace(best, **{setting: value}, fitted=fitted) for value in values[setting]]
    return [traffic for traffic in found if traffic != best]


def search(
    start: Traffic,
    seconds: Callable[[Any], float],
    several_hosts: bool,
    settings: tuple[str, ...] = SETTINGS,
    alone: bool = True,
) -> tuple[Trial, list[Trial]]:
    """Return the best way found, and all that were tried, the start first.

    Parameters
    ----------
    start : Traffic
    seconds : callable
        From a traffic to the time of a step, the same number on every rank; from None to that
        of computing alone.
    several_hosts : bool
    settings : tuple of str
        What to try, in this order.
    alone : bool
        Whether ``seconds`` takes None.

    Notes
    -----
    One setting after the other, the best of each kept for the next: some ten trials of 21
    steps.
    """
    least = seconds(None) if alone else 0.0

    def tried(traffic: Traffic) -> Trial:
        taken = seconds(traffic)
        return Trial(traffic, taken, max(0.0, taken - least))

    best = tried(start)
    trials = [best]
    for setting in settings:
        for traffic in candidates(setting, best.traffic, several_hosts):
            trials.append(tried(traffic))
            if trials[-1].step_s < best.step_s * (1 - MARGIN):
                best = trials[-1]
    return best, trials


def traffic_of(
    config: Config,
    world: World,
    records: Records,
    place: tuple[Device, float],
    mesh: Mesh | None = None,
) -> tuple[Traffic, str]:
    """Return how gradients are to travel, tuned if the configuration asks for it; collective.

    Parameters
    ----------
    config : Config
    world : World
    records : Records
        For a batch to try things on.
    place : (Device, float)
        Where this rank computes, and how many cores it has.
    mesh : Mesh, optional
        If ranks share one model.

    Returns
    -------
    traffic : Traffic
        With the schedule of a pipeline, where that is left open.
    how : str
        What tuning found, in a few words; empty without tuning.
    """
    replicas = pipeline.replica(mesh, world)[1]
    start = settled(Traffic.of(config), world, place[1], replicas)
    if not config.exchange.tune or world.size == 1:
        return start, ""
    loader = build.loader(config, records, world, None, True, pipeline.replica(mesh, world))
    bench: Bench | MeshBench
    if mesh is None:
        bench, facts = _bench(config, world, loader, place), {}
    else:
        # Slices of a part of a model do not go by the size of the model.
        start = replace(start, fitted=False)
        where = pipeline.Place(*place, None, start)
        bench = MeshBench(config, world, mesh, loader, where)
        if not bench.open:
            return start, "nothing to try: one replica, and no schedule that is left open"
        facts = dict(bench.facts())
    specs = [str(spec) for side in bench.part.specs() for spec in side]
    facts |= {
        "model": config.model.name,
        "arguments": str(sorted(config.model.args.items())),
        "batch": specs,
        "step": str(bench.options),
        "optimizer": config.optim.name,
        "ranks": world.size,
        # Of each rank: how many a host has counts too, and hosts may have one name.
        "places": world.control.allgather_obj([world.host, world.local_rank]),
        "cores": place[1],
        "device": str(place[0]),
        "mpi": world.library,
    }
    return tuned(bench, start, world.control.bcast_obj(facts, 0))


def _bench(config: Config, world: World, loader: Loader, place: tuple[Device, float]) -> Bench:
    """Return what trials of a whole model on each rank are made with; collective."""
    device, cores = place
    pause_s = PAUSE_S if cores < 1 else 0.0
    together = build.together(config, world.group, pause_s)
    net, goal = agreed(world.control, lambda: build.objective(config, loader, device, together))
    options = build.options(config, False, pause_s)
    parts = net.collect_params(), build.optimizer(config), options
    return Bench(world, goal, *parts, cores, batch_of(loader))


def tuned(
    bench: Bench | MeshBench, start: Traffic, facts: dict[str, Any]
) -> tuple[Traffic, str]:
    """Return the best way for this model, these ranks and hosts, and how it was found.

    Parameters
    ----------
    bench : Bench or MeshBench
    start : Traffic
    facts : dict
        What the answer depends on; equal ones share it.
    """
    world = bench.world
    # How to wait is measured at each start: no part of the question, nor of the answer.
    asked = asdict(replace(start, pause_s=0.0, waiting="auto"))
    path = _directory() / f"{_key({**facts, 'start': asked})}.json"
    known = world.control.bcast_obj(_read(path) if world.rank == 0 else None, 0)
    if known is not None:
        kept = Traffic(**known["traffic"])
        traffic = replace(kept, pause_s=start.pause_s, waiting=start.waiting)
        return traffic, f"as tuned before ({path.name[:12]})"
    several = len(world.hosts) > 1
    best, trials = search(start, bench.step_s, several, bench.settings, bench.alone)
    if world.rank == 0:
        _write(path, {"traffic": asdict(best.traffic), "trials": [asdict(t) for t in trials]})
    first, last = trials[0].exposed_s * 1e3, best.exposed_s * 1e3
    what = "exposed a step" if bench.alone else "a step"
    return best.traffic, f"{len(trials)} tried, {first:.1f} -> {last:.1f} ms {what}"


def _key(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "hpctrain", "exchange")


def _read(path: Path) -> dict[str, Any] | None:
    """Return what was found before; None if there is nothing that can be understood."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        found: dict[str, Any] = json.loads(path.read_text())
        Traffic(**found["traffic"])
        return found
    return None


def _write(path: Path, found: dict[str, Any]) -> None:
    """Keep what was found; a cache that cannot be written is none."""
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(found, indent=1))
        temporary.replace(path)
