"""How gradients travel in a run: from settings to lanes, overlap and a path."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpctrain.comm.compress import codec
from hpctrain.comm.probe import spare_core
from hpctrain.comm.world import World
from hpctrain.config import Config
from hpctrain.engine import DEFAULT_LANES, LaneSpec
from hpctrain.errors import ConfigError
from hpctrain.graph.native import available, compiler
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.ways import Way, connect
from hpctrain.parallel.work import Options

__all__ = ["Traffic", "lanes_for", "overlaps", "way_of"]

PAUSE_S = 2e-4  # between two looks for a message, where ranks share cores


@dataclass(frozen=True, slots=True)
class Traffic:
    """Settings of the exchange; see the section of that name in the configuration."""

    path: str = "auto"
    wire: str = "none"
    slice_mib: float = 1.0
    in_flight: int = 4
    pause_s: float = PAUSE_S
    overlap: str = "auto"
    threshold: float = 0.5
    ratio: float = 0.01

    @classmethod
    def of(cls, config: Config) -> "Traffic":
        """Return the settings of a configuration."""
        e = config.exchange
        return cls(
            path=e.path,
            wire=e.wire,
            slice_mib=e.slice_mib,
            in_flight=e.in_flight,
            overlap=e.overlap,
            threshold=e.threshold,
            ratio=e.ratio,
        )


def lanes_for(traffic: Traffic, readers: int = 1) -> Mapping[str, int | LaneSpec]:
    """Return the lanes of the engine of a run."""
    comm = LaneSpec(ordered=True, in_flight=traffic.in_flight, pause_s=traffic.pause_s)
    return {**DEFAULT_LANES, "comm": comm, "io": readers}


def overlaps(traffic: Traffic, world: World, cores: float) -> bool:
    """Return whether to exchange while computing; collective.

    Between hosts it always pays: there the network works, not a core. On one host the sums
    are work for a core, and a thread for them only costs switches unless a core is free.
    """
    if traffic.overlap != "auto":
        return traffic.overlap == "on"
    if world.size == 1 or world.local_size < world.size:
        return True
    return cores > 1 and bool(spare_core(world.control))


def way_of(traffic: Traffic, world: World, state: ModelState, options: Options) -> Way:
    """Make the path of the gradients; collective.

    Raises
    ------
    ConfigError
        If the settings do not go together, or not with these ranks.
    """
    if traffic.wire != "none" and options.shard:
        raise ConfigError(
            f"exchange.wire: got {traffic.wire} with exchange.reproducible ranks, whose sums "
            "travel in float64; set wire to none, or reproducible to run"
        )
    if traffic.wire != "none" and state.flat.dtype != np.float32:
        raise ConfigError(
            f"exchange.wire: got {traffic.wire} for gradients in {state.flat.dtype}, needed "
            "float32; set wire to none"
        )
    return connect(
        traffic.path,
        world.group,
        state,
        options,
        codec(
            traffic.wire,
            threshold=traffic.threshold,
            ratio=traffic.ratio,
            compiler=compiler if available() else None,
        ),
        traffic.in_flight,
    )
