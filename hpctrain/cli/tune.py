"""``--exchange.tune``: try ways of exchanging gradients, and keep the best for the next run.

What is tried is timed on a batch of the run itself, with a learning rate of zero, so that
nothing is learned by it. The time beyond that of computing alone counts.
"""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpctrain import engine
from hpctrain.backend import Device
from hpctrain.cli import build
from hpctrain.cli.exchange import PAUSE_S, Traffic, lanes_for, overlaps, settled, way_of
from hpctrain.cli.pace import pace
from hpctrain.comm.guard import agreed
from hpctrain.comm.world import World
from hpctrain.config import Config
from hpctrain.io import Records
from hpctrain.optim import Constant, Optimizer
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.program import Objective
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.ways import Way
from hpctrain.parallel.work import Options, Work

__all__ = ["Bench", "Trial", "candidates", "search", "traffic_of", "tuned"]

STEPS, WARM_UP = 15, 6
MARGIN = 0.02  # of the step: less is noise, and what is simpler stays
SLICES = (1.0, 0.25, 4.0)
IN_FLIGHT = (8, 4, 2)


@dataclass(frozen=True, slots=True)
class Trial:
    """One way that was tried.

    Attributes
    ----------
    traffic : Traffic
    step_s, exposed_s : float
        Time of a step, and what of it is beyond computing alone.
    """

    traffic: Traffic
    step_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class Bench:
    """What trials are made with: the model, its optimizer, and this rank's part of a batch."""

    world: World
    objective: Objective
    parameters: Any
    optimizer: Optimizer
    options: Options
    cores: float
    part: Work

    def step_s(self, traffic: Traffic | None) -> float:
        """Return the time of a step, without any exchange for None; collective."""
        nbytes = (traffic or Traffic(slice_mib=1.0)).slice_bytes(self.parameters)
        state = ModelState(self.parameters, self.optimizer, nbytes)
        kept = {name: tensor.value.copy() for name, tensor in state.fixed.items()}
        world, options, way = self.world, self.options, Way(None, None)
        if traffic is not None:
            options = replace(options, overlap=overlaps(traffic, world, self.cores))
            way = way_of(traffic, world, state, options)
        with engine.create(lanes=lanes_for(traffic or Traffic()), run_ahead=4096) as lanes:
            step = DataParallel(
                self.objective, state, self.optimizer, Constant(base_lr=0.0), lanes,
                world.control, options, way,
            )  # fmt: skip
            step.prepare(*self.part.specs())
            found = pace(step, self.part, world.control, STEPS, WARM_UP)
        for name, tensor in state.fixed.items():
            tensor.value[...] = kept[name]
        state.leave()
        way.free()
        return found.step_s


def candidates(setting: str, best: Traffic, several_hosts: bool) -> list[Traffic]:
    """Return what to try of one setting beside the best so far.

    Parameters
    ----------
    setting : {"path", "overlap", "slice_mib", "in_flight"}
    best : Traffic
    several_hosts : bool

    Notes
    -----
    A path or an overlap that the user has chosen stays, and MPI's sums are never compressed.
    """
    paths = ("direct", "mpi") if best.wire == "none" else ("direct",)
    values: dict[str, tuple[Any, ...]] = {
        "path": paths if best.path == "auto" else (),
        "overlap": ("on", "off") if best.overlap == "auto" else (),
        "slice_mib": SLICES,
        "in_flight": IN_FLIGHT if several_hosts or best.overlap != "off" else (),
    }
    fitted = best.fitted and setting != "slice_mib"
    found = [replace(best, **{setting: value}, fitted=fitted) for value in values[setting]]
    return [traffic for traffic in found if traffic != best]


def search(
    start: Traffic, seconds: Callable[[Traffic | None], float], several_hosts: bool
) -> tuple[Trial, list[Trial]]:
    """Return the best way found, and all that were tried, the start first.

    Parameters
    ----------
    start : Traffic
    seconds : callable
        Returns the time of a step, the same number on every rank.
    several_hosts : bool

    Notes
    -----
    One setting after the other, the best of each kept for the next: some ten trials of 21
    steps.
    """
    alone = seconds(None)

    def tried(traffic: Traffic) -> Trial:
        taken = seconds(traffic)
        return Trial(traffic, taken, max(0.0, taken - alone))

    best = tried(start)
    trials = [best]
    for setting in ("path", "overlap", "slice_mib", "in_flight"):
        for traffic in candidates(setting, best.traffic, several_hosts):
            trials.append(tried(traffic))
            if trials[-1].step_s < best.step_s * (1 - MARGIN):
                best = trials[-1]
    return best, trials


def traffic_of(
    config: Config, world: World, records: Records, place: tuple[Device, float]
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

    Returns
    -------
    traffic : Traffic
    how : str
        What tuning found, in a few words; empty without tuning.
    """
    device, cores = place
    start = settled(Traffic.of(config), world, cores)
    if not config.exchange.tune or world.size == 1:
        return start, ""
    loader = build.loader(config, records, world, None, training=True)
    pause_s = PAUSE_S if cores < 1 else 0.0
    together = build.together(config, world.group, pause_s)
    net, goal = agreed(world.control, lambda: build.objective(config, loader, device, together))
    batch = next(iter(loader.epoch(0, 0)))
    part = Work(
        [array.copy() for array in batch.inputs],
        [array.copy() for array in batch.targets],
        batch.count,
        batch.global_count,
        batch.row,
    )
    bench = Bench(
        world,
        goal,
        net.collect_params(),
        build.optimizer(config),
        build.options(config, False, pause_s),
        cores,
        part,
    )
    specs = [str(spec) for side in part.specs() for spec in side]
    facts = {
        "model": config.model.name,
        "arguments": str(sorted(config.model.args.items())),
        "batch": specs,
        "step": str(bench.options),
        "optimizer": config.optim.name,
        "ranks": world.size,
        # Of each rank: how many a host has counts too, and hosts may have one name.
        "places": world.control.allgather_obj([world.host, world.local_rank]),
        "cores": cores,
        "device": str(device),
        "mpi": world.library,
    }
    return tuned(bench, start, world.control.bcast_obj(facts, 0))


def tuned(bench: Bench, start: Traffic, facts: dict[str, Any]) -> tuple[Traffic, str]:
    """Return the best way for this model, these ranks and hosts, and how it was found.

    Parameters
    ----------
    bench : Bench
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
    best, trials = search(start, bench.step_s, len(world.hosts) > 1)
    if world.rank == 0:
        _write(path, {"traffic": asdict(best.traffic), "trials": [asdict(t) for t in trials]})
    first, last = trials[0].exposed_s * 1e3, best.exposed_s * 1e3
    return best.traffic, f"{len(trials)} tried, {first:.1f} -> {last:.1f} ms exposed a step"


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
