"""How much memory a rank may take, and whether a model fits: asked before it is there.

A limit is that of the process (``ulimit -v``, ``ulimit -d``) or of its control group, which
the ranks of a host may share. What the ranks had in use before the model was made is taken off.
"""

import re
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpctrain.backend import Device
from hpctrain.cli import build
from hpctrain.comm.guard import agreed
from hpctrain.comm.world import World
from hpctrain.config import Config
from hpctrain.errors import ConfigError
from hpctrain.nn import Block
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.hollow import settle, start_hollow
from hpctrain.parallel.pipeline import Pipeline
from hpctrain.parallel.program import Objective
from hpctrain.parallel.together import Combine

__all__ = ["Limit", "Room", "limits", "remedies", "state_bytes"]

VALUES = "values of a step"

_ENDLESS = 2**60  # bytes: no limit
_AT_ONCE = 4  # arrays of its size that a parameter takes while the buffers are made


class Limit(NamedTuple):
    """What bounds the memory of this rank.

    Attributes
    ----------
    name : str
    most, used : int
        Bytes.
    shared : str
        What all ranks under this limit have in common; empty if it is for this one alone.
    """

    name: str
    most: int
    used: int
    shared: str = ""


def limits(root: Path = Path("/")) -> list[Limit]:
    """Return the limits of this process; files are looked for below ``root``."""
    status = (root / "proc/self/status").read_text()
    found = []
    for name, kind, field in (
        ("ulimit -v", resource.RLIMIT_AS, "VmSize"),
        ("ulimit -d", resource.RLIMIT_DATA, "VmData"),
    ):
        most = resource.getrlimit(kind)[0]
        used = re.search(rf"{field}:\s*(\d+) kB", status)
        if 0 <= most < _ENDLESS and used is not None:
            found.append(Limit(name, most, int(used[1]) * 1024))
    return found + _groups(root)


def _groups(root: Path) -> list[Limit]:
    """Return the limits of the control group and of those around it (version 2)."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    place, found = root / "sys/fs/cgroup" / own, []
    while (place / "cgroup.procs").exists():
        try:
            most, stat = (place / "memory.max").read_text(), (place / "memory.stat").read_text()
        except OSError:  # the outermost has none
            most, stat = "max", ""
        if most.strip() != "max":
            parts = re.findall(r"^(?:anon|shmem) (\d+)$", stat, re.MULTILINE)
            name = f"control group /{place.relative_to(root / 'sys/fs/cgroup')}"
            found.append(Limit(name, int(most), sum(map(int, parts)), str(place)))
        place = place.parent
    return found


def state_bytes(
    parameters: Mapping[str, Any],
    config: Config,
    replicas: int,
    summed: bool,
    saves: bool = False,
) -> dict[str, int]:
    """Return the bytes that training keeps on a rank for its parameters.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        Those of this rank; with or without values.
    config : Config
    replicas : int
        Ranks that have the same ones.
    summed : bool
        Whether gradients of several parts are added up.
    saves : bool
        Whether this rank writes checkpoints, and so copies what it has of the state.
    """
    tensors = [p.data() for p in parameters.values() if p.grad_req != "null"]
    trained = sum(t.size * t.dtype.itemsize for t in tensors)
    states = len(build.optimizer(config).state_names)
    share = replicas if config.optim.sharded else 1
    kept = {
        "parameters": trained,
        "gradients": trained,
        "sums of gradients": trained * summed,
        "optimizer": -(-trained * states // share),
    }
    kept["copies to save"] = saves * (trained + kept["optimizer"])
    kept["to make them"] = max(0, _AT_ONCE * trained - sum(kept.values()))
    return kept


def remedies(config: Config, ranks: int, values: bool) -> str:
    """Return what else a run may try that has too little memory, each with a comma behind.

    Parameters
    ----------
    config : Config
    ranks : int
        Of the run.
    values : bool
        Whether what is kept for the backward part is what has no room.
    """
    found, parallel = [], config.parallel
    replicas = ranks // (parallel.pipeline * parallel.tensor)
    allreduce = config.exchange.kind == "allreduce"
    if allreduce and replicas > 1 and not config.optim.sharded:
        found.append("set optim.sharded")
    if values and not config.memory.budget and config.memory.recompute == "auto":
        found.append("compute values again (memory.budget)")
    if values:
        found.append("take fewer records in a batch")
    return "".join(f"{one}, " for one in found)


class Room:
    """The memory that this rank had left before its model was made.

    Parameters
    ----------
    world : World
    config : Config
    """

    def __init__(self, world: World, config: Config) -> None:
        self.world, self._config = world, config
        self.limits = limits()
        self.limited = any(world.control.allgather_obj(bool(self.limits)))
        self.state: dict[str, int] = {}

    def check(self, need: Mapping[str, int]) -> None:
        """Raise `ConfigError` on all ranks if one has too little; collective."""
        if not self.limited:
            return
        mine = sum(need.values())
        rows = [[self.world.host, limit.shared, mine] for limit in self.limits]
        every = [row for rank in self.world.control.allgather_obj(rows) for row in rank]

        def look() -> None:
            for limit in self.limits:
                key = [self.world.host, limit.shared]
                together = [row[2] for row in every if row[:2] == key and limit.shared]
                self._refuse(limit, need, sum(together) or mine, len(together) or 1)

        agreed(self.world.control, look)

    def _refuse(self, limit: Limit, need: Mapping[str, int], whole: int, ranks: int) -> None:
        left = max(0, limit.most - limit.used)
        if whole <= left:
            return
        parts = ", ".join(f"{name} {_mib(n)}" for name, n in need.items() if n)
        who = f"{ranks} ranks here need" if ranks > 1 else "training needs"
        times = -(-whole // max(1, left))
        raise ConfigError(
            f"memory: {who} {_mib(whole)} MiB ({parts}), got {_mib(left)} MiB that are left of "
            f"{_mib(limit.most)} ({limit.name}); spread the model over {times} times as many "
            f"ranks or more (parallel.pipeline, parallel.tensor), "
            f"{remedies(self._config, self.world.size, VALUES in need)}or raise the limit"
        )

    def objective(
        self, config: Config, loader: Any, device: Device, together: Combine | None
    ) -> tuple[Block, Objective]:
        """Build a whole model, once it is sure that its parameters have room; collective."""
        if not self.limited:
            return agreed(
                self.world.control, lambda: build.objective(config, loader, device, together)
            )
        drawn: dict[str, Any] = {}
        seed, dtype = config.run.seed, config.device.dtype

        def start(net: Block) -> None:
            drawn.update(start_hollow(net.collect_params(), device, seed, dtype))

        net, goal = agreed(
            self.world.control,
            lambda: build.objective(config, loader, device, together, start),
        )
        parameters = net.collect_params()
        summed = config.data.accumulate > 1 or build.shard(config) > 0
        saves = self.world.rank == 0
        self.state = state_bytes(parameters, config, self.world.size, summed, saves)
        self.check(self.state)
        settle(parameters, drawn, set(parameters), device, seed)
        return net, goal

    def planned(self, step: DataParallel) -> None:
        """Check the same with the values of a step; collective."""
        if isinstance(step, Pipeline):
            values = step.stages.arena_bytes + step.stages.kept_bytes
        else:
            values = step.of_first_shape().working_bytes
        self.state.pop("to make them", None)
        self.check({**self.state, VALUES: values})


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f}"
