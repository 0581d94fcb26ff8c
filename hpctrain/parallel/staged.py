"""A model cut into pipeline stages: which nodes, parameters and values are on which rank.

The cut is made for one shape of micro-batch and in training mode; other shapes are cut at the
same places, and the forward part in inference mode where the parameters are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.autograd import Spec, Tensor, pause
from hpctrain.backend import CPU, Device
from hpctrain.comm.group import Group
from hpctrain.errors import ConfigError
from hpctrain.graph.capture import capture
from hpctrain.graph.ir import Graph
from hpctrain.graph.marks import GROUP
from hpctrain.parallel.cut_graph import cut_graph, cut_where, network_of, stage_graph
from hpctrain.parallel.node_times import measured_seconds
from hpctrain.parallel.pipeline_schedule import PipelineSchedule, apart, schedule
from hpctrain.parallel.pipeline_times import Times, fastest_zero_bubble, peak_formula
from hpctrain.parallel.program import Objective
from hpctrain.parallel.stages import Cut, cut_at, describe

__all__ = ["Layout", "StagedModel"]

Specs = tuple[Sequence[Spec], Sequence[Spec]]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model goes through a pipeline.

    Attributes
    ----------
    ranks : int
        Of the pipeline.
    schedule : str
        One of `hpctrain.parallel.pipeline_schedule.KINDS`.
    micro_batches : int
        Parts of a batch.
    chunks : int
        Stages on each rank.
    balance : {"time", "memory", "params"}
        What the cut makes even, where the model names no groups.
    times : Times, optional
        Of the stages: how far zero_bubble puts off each W; as in ZB-H1 if not given.
    whole : bool
        Make B and W one action, as the formulas of the papers have it; only to measure.
    copies : int
        Arrays as large as the parameters: these, the sums of gradients, and the optimizer's
        state.
    """

    ranks: int
    schedule: str = "1f1b"
    micro_batches: int = 1
    chunks: int = 1
    balance: str = "time"
    times: Times | None = None
    whole: bool = False
    copies: int = 3

    @property
    def stages(self) -> int:
        """How many there are on all ranks."""
        return self.ranks * self.chunks

    @property
    def merged(self) -> bool:
        """Whether stages compute B and W as one."""
        return self.whole and self.schedule != "zero_bubble"

    def plan(self, micro_batches: int) -> PipelineSchedule:
        """Return the schedule of a step of that many micro-batches."""
        if self.schedule == "zero_bubble" and self.times is not None:
            return fastest_zero_bubble(self.ranks, micro_batches, self.times)
        made = schedule(self.schedule, self.ranks, micro_batches, self.chunks)
        return made if self.whole else apart(made)

    def kept(self) -> list[int]:
        """Return about how many micro-batches each stage keeps at once."""
        size = self.ranks, self.micro_batches, self.chunks
        peaks = [peak_formula(self.schedule, rank, *size) for rank in range(self.ranks)]
        return [-(-peak // self.chunks) for peak in peaks] * self.chunks


class StagedModel:
    """Model and loss in stages; the same on all ranks.

    Parameters
    ----------
    objective : Objective
    parameters : mapping of str to Parameter
        Of the whole model; of those of other ranks only the shapes are looked at.
    layout : Layout
    specs : (specs of the inputs, specs of the targets)
        Of the largest micro-batch.
    group : Group, optional
        Ranks that must cut alike: what its rank 0 finds counts. Collective.
    device : Device
    timed : bool
        Measure the time of each operation; otherwise it is estimated.

    Raises
    ------
    ConfigError
        If the model cannot be cut so.
    """

    def __init__(  # noqa: PLR0913 (what a cut depends on)
        self,
        objective: Objective,
        parameters: Mapping[str, Any],
        layout: Layout,
        specs: Specs,
        group: Group | None = None,
        device: Device = CPU,
        timed: bool = False,
    ) -> None:
        self.objective, self.layout, self.device = objective, layout, device
        self.names = list(parameters)
        self.tensors = [p.data() for p in parameters.values()]
        graph = self._captured(specs, training=True)
        seconds: Sequence[float] = ()
        if timed and (group is None or group.rank == 0):
            seconds = measured_seconds(graph, device)
        if timed and group is not None:
            seconds = group.bcast_obj(list(seconds), 0)
        kept = layout.kept() if layout.balance == "memory" else ()
        together = self._read_at_once(graph, specs)
        self.graph, self.cut = cut_graph(
            graph, layout.stages, layout.balance, seconds, kept, together, layout.copies
        )
        if group is not None:
            bounds = group.bcast_obj(list(self.cut.bounds), 0)
            self.cut = cut_at(network_of(self.graph, seconds), bounds)
        self._grouped = any(node.mark(GROUP) is not None for node in graph.nodes)
        readers: dict[str, list[int]] = {name: [] for name in self.names}
        for number in range(layout.stages):
            for leaf in stage_graph(self.graph, self.cut, number).leaves:
                readers[self.names[self.graph.leaves.index(leaf)]].append(number)
        # What nothing reads is kept by the first stage: weights may decay all the same.
        self.readers = {name: tuple(found or [0]) for name, found in readers.items()}
        self.evaluation(specs)  # refused now, if at all

    def _read_at_once(self, graph: Graph, specs: Specs) -> list[list[int]]:
        """Return leaves that must be on one stage, since inference reads them at once.

        Training may read them far apart, such as the scale of a batch normalisation and its
        running mean: those of one block, and those of one operation of inference.
        """
        other = self._captured(specs, training=False)
        leaf = dict(zip(other.leaves, graph.leaves, strict=True))
        state = {target for target, _ in graph.assigns}
        read = ([leaf[v] for v in node.inputs if v in leaf] for node in other.nodes)
        blocks: dict[str, list[int]] = {}
        for name, value in zip(self.names, graph.leaves, strict=True):
            block, dot, _ = name.rpartition(".")
            if dot:
                blocks.setdefault(block, []).append(value)
        return [found for found in (*read, *blocks.values()) if state.intersection(found)]

    def homes(self, name: str) -> tuple[int, ...]:
        """Return the ranks of the pipeline that have a parameter, in order."""
        return tuple(sorted({stage % self.layout.ranks for stage in self.readers[name]}))

    @property
    def tied(self) -> list[str]:
        """The parameters that are on several ranks of the pipeline, in order."""
        return [name for name in self.names if len(self.homes(name)) > 1]

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages of a rank."""
        return tuple(range(rank, self.layout.stages, self.layout.ranks))

    def tensors_of(self, graph: Graph) -> dict[int, Tensor]:
        """Return the tensors of the leaves of a captured graph."""
        return dict(zip(graph.leaves, self.tensors, strict=True))

    def training(self, specs: Specs) -> tuple[Graph, Cut]:
        """Return the forward part of training for another shape, cut at the same places.

        Raises
        ------
        ConfigError
            If it has other nodes, so that the places do not fit.
        """
        graph = self._captured(specs, training=True)
        if self._grouped:
            return cut_graph(graph, self.layout.stages)
        mine, other = ([node.row.name for node in g.nodes] for g in (self.graph, graph))
        if mine != other:
            raise ConfigError(
                f"pipeline: a micro-batch of {_shapes(specs)} takes {len(other)} operations, "
                f"the largest one {len(mine)}, needed the same; mark groups in the model, or "
                "take batches whose micro-batches are equal"
            )
        return graph, cut_at(network_of(graph), self.cut.bounds)

    def evaluation(self, specs: Specs) -> tuple[Graph, Cut]:
        """Return the forward part of inference, cut where the parameters are."""
        graph = self._captured(specs, training=False)
        stages = dict(zip(graph.leaves, (self.readers[n] for n in self.names), strict=True))
        return cut_where(graph, stages, self.layout.stages)

    def describe(self) -> str:
        """Return the stages as a table."""
        return describe(network_of(self.graph), self.cut, self.graph.names)

    def _captured(self, specs: Specs, training: bool) -> Graph:
        count = len(specs[0])

        def function(*tensors: Any) -> tuple[Any, ...]:
            found = self.objective(tensors[:count], tensors[count:])
            return found[:2] if training else found

        with pause():
            graph = capture(
                function, [*specs[0], *specs[1]], self.tensors, self.device, training
            )
        return replace(graph, names=dict(zip(graph.leaves, self.names, strict=True)))


def _shapes(specs: Specs) -> str:
    return ", ".join(map(str, (*specs[0], *specs[1])))
