"""A model in pipeline stages, and what travels between them.

A network is a list of layers in an order in which they can be run. A stage is a run of
neighbouring layers. A value that a later stage reads travels from stage to stage, also through
those that do not need it; its cotangent comes back the same way, and each stage adds its own
part. What no layer makes, such as a batch and its labels, is fed wherever it is read. A
parameter that several stages read is on each of them; the gradients of all are summed.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from hpctrain.errors import ConfigError

__all__ = ["Cut", "Layer", "Network", "Stage", "Value", "cut_at", "describe"]

Value = Hashable


@dataclass(frozen=True, slots=True)
class Layer:
    """What is not cut any further.

    Attributes
    ----------
    name : str
    inputs, outputs : tuple of hashable
        Values that it reads and makes.
    parameters : tuple of hashable
        That it reads.
    time_s : float
        Forward and backward, for one micro-batch.
    memory_bytes : int
        Of what it keeps of one micro-batch until its backward part.
    """

    name: str
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    parameters: tuple[Value, ...] = ()
    time_s: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Network:
    """Layers in order, and the bytes of values and parameters.

    Raises
    ------
    ConfigError
        If a layer reads what a later one makes, or two make one value.
    """

    layers: tuple[Layer, ...]
    nbytes: Mapping[Value, int] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        maker = {v: place for place, layer in enumerate(self.layers) for v in layer.outputs}
        for place, layer in enumerate(self.layers):
            for value in layer.outputs:
                if maker[value] != place:
                    both = f"{layer.name} and {self.layers[maker[value]].name}"
                    raise ConfigError(f"network: got {value} from {both}, needed one maker")
            for value in layer.inputs:
                if maker.get(value, -1) >= place:
                    raise ConfigError(
                        f"network: {layer.name} reads {value} before "
                        f"{self.layers[maker[value]].name} makes it; give the layers in order"
                    )

    def crossing(self, place: int) -> tuple[Value, ...]:
        """Return what layers before ``place`` make and others read, in the order of making."""
        read = {v for layer in self.layers[place:] for v in layer.inputs}
        return tuple(v for layer in self.layers[:place] for v in layer.outputs if v in read)


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers ``start`` up to ``stop``.

    Attributes
    ----------
    time_s : float
    memory_bytes : int
        Of one micro-batch.
    parameter_bytes : int
        Each parameter counts once.
    sends : tuple of hashable
        Values for the next stage, in this order; those of others that it hands on, too.
    """

    start: int
    stop: int
    time_s: float
    memory_bytes: int
    parameter_bytes: int
    sends: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A network in stages.

    Attributes
    ----------
    stages : tuple of Stage
        They cover all layers in order.
    shared : mapping of parameter to tuple of int
        Parameters that more than one stage reads, and which stages.
    """

    stages: tuple[Stage, ...]
    shared: Mapping[Value, tuple[int, ...]]

    @property
    def bounds(self) -> tuple[int, ...]:
        """Places at which stages begin, and the number of layers."""
        return (*(stage.start for stage in self.stages), self.stages[-1].stop)


def cut_at(network: Network, bounds: Sequence[int], empty: bool = False) -> Cut:
    """Cut a network at given places.

    Parameters
    ----------
    network : Network
    bounds : sequence of int
        0, the places at which further stages begin, and the number of layers.
    empty : bool
        Allow stages without layers, which hand on what comes.
    """
    count = len(network.layers)
    rising = all(a < b or (empty and a == b) for a, b in pairwise(bounds))
    if len(bounds) < 2 or (bounds[0], bounds[-1]) != (0, count) or not rising:
        raise ConfigError(f"cut: got bounds {tuple(bounds)}, needed 0 < ... < {count}")
    readers: dict[Value, list[int]] = {}
    found = []
    for number, (start, stop) in enumerate(pairwise(bounds)):
        layers = network.layers[start:stop]
        parameters = dict.fromkeys(p for layer in layers for p in layer.parameters)
        for parameter in parameters:
            readers.setdefault(parameter, []).append(number)
        found.append(
            Stage(
                start,
                stop,
                sum(layer.time_s for layer in layers),
                sum(layer.memory_bytes for layer in layers),
                sum(network.nbytes.get(p, 0) for p in parameters),
                network.crossing(stop),
            )
        )
    shared = {p: tuple(stages) for p, stages in readers.items() if len(stages) > 1}
    return Cut(tuple(found), shared)


def describe(
    network: Network, cut: Cut, labels: Mapping[Any, str] = MappingProxyType({})
) -> str:
    """Return a cut as a table, one stage a line, and the shared parameters by their labels."""
    lines = [
        f"{'stage':<6} {'layers':<34} {'time, ms':>10} {'kept, bytes':>14} "
        f"{'parameters':>14} {'sends, bytes':>14}"
    ]
    for number, stage in enumerate(cut.stages):
        ends = (network.layers[place].name for place in (stage.start, stage.stop - 1))
        names = " .. ".join(dict.fromkeys(ends))
        sent = sum(network.nbytes.get(v, 0) for v in stage.sends)
        lines.append(
            f"{number:<6} {names:<34} {1e3 * stage.time_s:>10.3f} {stage.memory_bytes:>14,} "
            f"{stage.parameter_bytes:>14,} {sent:>14,}"
        )
    for parameter, stages in cut.shared.items():
        label = labels.get(parameter, parameter)
        lines.append(f"shared: {label} by stages {', '.join(map(str, stages))}")
    return "\n".join(lines)
