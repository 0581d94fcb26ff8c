"""How gradients travel in a run: from settings to lanes, overlap and a path."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.comm.compress import codec
from hpctrain.comm.group import Group
from hpctrain.comm.probe import spare_core
from hpctrain.comm.transfer import block
from hpctrain.comm.world import World
from hpctrain.config import Config
from hpctrain.engine import DEFAULT_LANES, LaneSpec
from hpctrain.graph.native import available, compiler
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.ways import Way, connect
from hpctrain.parallel.work import Options

__all__ = ["OPEN", "Traffic", "lanes_for", "overlaps", "settled", "way_of"]

OPEN = "auto"  # of a setting: not the user's choice

PAUSE_S = 2e-4  # between two looks for a message, where ranks share cores
LEAST_BYTES = 2**16  # of a slice that is fitted to the model
CODED_MIB = 8.0  # 1, 8 and 16 took 132, 119 and 123 ms a step with 2bit (mlp, three hosts)
FEW_BITS = ("2bit", "topk")
WHOLE_MIB = 4096.0  # of a slice: as long as may be
PAUSE_SPARE_S = 5e-5  # where there is a core for it, and MPI cannot wait for what is awaited


@dataclass(frozen=True, slots=True)
class Traffic:
    """Settings of the exchange; see the section of that name in the configuration.

    ``cores`` is how many each rank has to itself at least, ``fitted`` whether slices are made
    smaller for small models.  The communication thread waits ``blocking`` inside MPI for all
    messages under way, or is ``polling``: it looks at them and sleeps.  What is ``served`` goes
    by its priority, for no other rank has to send the same.  ``schedule``: of a pipeline.
    """

    path: str = "auto"
    wire: str = "none"
    slice_mib: float = 0.0  # 0: see `settled`
    in_flight: int = 8
    pause_s: float = 0.0
    overlap: str = "auto"
    threshold: float = 0.5
    ratio: float = 0.01
    cores: float = 1.0
    fitted: bool = False
    waiting: str = "auto"
    served: bool = False
    schedule: str = OPEN

    @property
    def eager_s(self) -> float:
        """Seconds between two looks for a message while the core has nothing else to do."""
        return min(PAUSE_SPARE_S, self.pause_s) if self.cores >= 1 else self.pause_s

    def slice_bytes(self, parameters: Mapping[str, Any]) -> int:
        """Return the size of a slice for a model with these parameters.

        Small models get eight slices, so that there is something to overlap.
        """
        most = round(self.slice_mib * 2**20)
        if not self.fitted:
            return most
        trained = (p.data() for p in parameters.values() if p.grad_req != "null")
        nbytes = sum(t.size * t.dtype.itemsize for t in trained)
        return min(most, max(LEAST_BYTES, nbytes // 8))

    @classmethod
    def of(cls, config: Config) -> "Traffic":
        """Return the settings of a configuration."""
        e = config.exchange
        # With servers and stages what is awaited may depend on what is not sent yet.
        plain = e.kind == "allreduce" and config.parallel.pipeline * config.parallel.tensor == 1
        return cls(
            served=e.kind == "server",
            waiting=e.waiting if plain else "polling",
            path=e.path,
            wire=e.wire,
            slice_mib=e.slice_mib,
            in_flight=e.in_flight,
            overlap=e.overlap,
            threshold=e.threshold,
            ratio=e.ratio,
            schedule=config.parallel.schedule,
        )


def lanes_for(traffic: Traffic, readers: int = 1) -> Mapping[str, int | LaneSpec]:
    """Return the lanes of the engine of a run."""
    comm = LaneSpec(
        ordered=not traffic.served,
        in_flight=traffic.in_flight,
        pause_s=traffic.pause_s or PAUSE_S,
        block=block if traffic.waiting == "blocking" else None,
    )
    return {**DEFAULT_LANES, "comm": comm, "io": readers}


def overlaps(traffic: Traffic, world: World, cores: float) -> bool:
    """Return whether to exchange while computing.

    Between hosts it pays: there the network works, not a core. On one host the sums are work
    for a core; a thread for them fills gaps, unless ranks share cores anyway.
    """
    if traffic.overlap != "auto":
        return traffic.overlap == "on"
    return world.size == 1 or world.local_size < world.size or cores >= 1


def settled(traffic: Traffic, world: World, cores: float, replicas: int = 0) -> Traffic:
    """Fill in what is left open; collective.

    Slices are larger on one host, where each costs a fixed time and none queues for a link. A
    rank that has no one to sum with (one of ``replicas``, all ranks if 0) takes one, which
    saves up to a thirtieth of a step. A communication thread blocks inside MPI, which spins,
    where it has a core for itself: that is tried. All ranks go by the fewest cores of any, for
    they have to find one order of exchange.
    """
    several, alone = world.local_size < world.size, (replicas or world.size) == 1
    # What servers code is short on the wire: there, too, a slice costs a fixed time above all.
    coded = several and traffic.served and traffic.wire in FEW_BITS
    size = WHOLE_MIB if alone else CODED_MIB if coded else 1.0 if several else 4.0
    found = replace(
        traffic,
        slice_mib=traffic.slice_mib or size,
        fitted=not (traffic.slice_mib or alone or coded),
        cores=min(world.control.allgather_obj(cores)),
    )
    waiting = traffic.waiting
    if waiting == "auto":
        # Who is told how often to look is not to block. The masks of the processes may promise
        # a core that another host or container has, but never hide one.
        promised = world.size > 1 and found.cores >= 2 and not traffic.pause_s
        waiting = "blocking" if promised and spare_core(world.control) else "polling"
    pause_s = traffic.pause_s or (PAUSE_SPARE_S if waiting == "blocking" else PAUSE_S)
    return replace(found, waiting=waiting, pause_s=pause_s)


def way_of(
    traffic: Traffic,
    world: World,
    state: ModelState,
    options: Options,
    group: Group | None = None,
) -> Way:
    """Make the path of the gradients; collective over ``group``, all ranks if it is None.

    Raises
    ------
    ConfigError
        If these ranks cannot have that path, or the codec does not take this dtype.
    """
    way = connect(
        traffic.path,
        group or world.group,
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
    if way.link is None:
        return way
    # On a core for itself communication costs computation nothing; ranks on one core pay for
    # each other.
    share = 0.0 if traffic.waiting == "blocking" else 1 / min(1.0, traffic.cores)
    cost = way.link.cpu_s_per_byte * share
    return replace(way, link=replace(way.link, cpu_s_per_byte=cost))
