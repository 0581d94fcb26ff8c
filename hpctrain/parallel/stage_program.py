"""The plans of one pipeline stage for one shape of micro-batch: F, B and W, and their values.

Between its parts a stage keeps values of each micro-batch in a *slot*; what a message brings
and only one part reads lies in an *area* that all micro-batches share. Both are leaves of the
plans: arrays that are bound once. The batch itself is not copied: it is fed.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.autograd import Spec, Tensor
from hpctrain.backend import CPU, Device
from hpctrain.graph.ir import Graph
from hpctrain.graph.passes import FUSED, optimise
from hpctrain.graph.plan import Plan, make_plan
from hpctrain.graph.repeated import kept_bytes
from hpctrain.parallel.cut_graph import stage_graph
from hpctrain.parallel.packing import Packing, pack
from hpctrain.parallel.stage_parts import StageParts, stage_parts
from hpctrain.parallel.stages import Cut

__all__ = ["StageProgram", "packet_specs", "stage_program"]


@dataclass(frozen=True, slots=True)
class StageProgram:
    """What a stage computes for one micro-batch, planned.

    Attributes
    ----------
    number : int
        Of the stage.
    leaves, wanted : list of Tensor
        Parameters and state that it reads, and those of them that are trained.
    forward, backward, weight : Plan
        Their inputs are parts of the batch; their leaves the ``leaves``, then what
        ``statics`` names.
    added : Plan
        ``weight`` again, with gradients that are in its arena only until they are added.
    fed : tuple of int
        Places in (inputs, targets) of what ``forward`` is fed.
    fed_later : (tuple of int, tuple of int)
        The same for ``backward`` and ``weight``.
    statics : (tuple of int, tuple of int, tuple of int)
        For each plan the values in slot or area that it reads.
    entering, given : tuple of int
        Values that the message before F brings, and the one before B; the weight of the loss
        is the last given one if the loss is made here.
    forward_keeps, backward_keeps : tuple of int
        Values that the last outputs of these parts are kept as.
    slot, area : Packing
    sent, returned : Packing
        The message after F, and after B, by position.
    received, answered : Packing
        Those before F and B, by position.
    once : Plan
        What is made of parameters alone, once for all micro-batches of an update; leaves of the
        others between ``leaves`` and ``statics``.
    keys : tuple
        What these values are made of; see `hpctrain.graph.derived`.
    results : tuple of int
        Which outputs of the model (0 losses, 1 right answers) follow the first
        ``len(sent.specs)`` outputs of F.
    """

    number: int
    leaves: list[Tensor]
    wanted: list[Tensor]
    forward: Plan
    backward: Plan
    weight: Plan
    added: Plan
    fed: tuple[int, ...]
    fed_later: tuple[tuple[int, ...], tuple[int, ...]]
    statics: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    entering: tuple[int, ...]
    given: tuple[int, ...]
    forward_keeps: tuple[int, ...]
    backward_keeps: tuple[int, ...]
    slot: Packing
    area: Packing
    sent: Packing
    returned: Packing
    received: Packing
    answered: Packing
    once: Plan
    keys: tuple[Hashable, ...]
    results: tuple[int, ...]

    @property
    def makes_loss(self) -> bool:
        """Whether the losses are made here."""
        return 0 in self.results

    @property
    def whole(self) -> bool:
        """Whether W makes the cotangents too, and B nothing."""
        return len(self.weight.graph.outputs) > len(self.wanted)

    @property
    def kept_bytes(self) -> int:
        """Bytes of what is made once for all micro-batches, and to make it."""
        return kept_bytes(self.once)

    @property
    def arena_bytes(self) -> int:
        """Working memory that its largest part needs."""
        plans = self.forward, self.backward, self.weight, self.added
        return max(plan.arena_bytes for plan in plans)


def packet_specs(graph: Graph, cut: Cut, boundary: int) -> tuple[list[Spec], list[Spec]]:
    """Return what crosses a boundary forward, and the cotangents that come back.

    Parameters
    ----------
    graph, cut
    boundary : int
        That behind stage ``boundary``; no values before the first stage.
    """
    if boundary < 0:
        return [], []
    values = [v for v in cut.stages[boundary].sends if isinstance(v, int)]
    specs = [graph.specs[v] for v in values]
    return specs, [s for s in specs if s.dtype.kind == "f"]


def stage_program(  # noqa: PLR0913 (a stage of a model)
    graph: Graph,
    cut: Cut,
    number: int,
    tensors: Mapping[int, Tensor],
    trained: Sequence[Tensor],
    device: Device = CPU,
    fuse: bool = False,
    again: Callable[[Graph], Graph] | None = None,
    narrow: bool = False,
    whole: bool = False,
    keeps: bool = True,
) -> StageProgram:
    """Plan one stage.

    Parameters
    ----------
    graph, cut
        A forward part in training mode, as `hpctrain.parallel.cut_graph.cut_graph` gives it.
    number : int
    tensors : mapping of int to Tensor
        Of the leaves of ``graph``; those of this stage have arrays.
    trained : sequence of Tensor
    device : Device
    fuse : bool
        Make one kernel of neighbouring element-wise operations.
    again : callable, optional
        Lets the backward parts compute values again; see `stage_parts`.
    narrow : bool
        Round factors of products to bfloat16.
    whole : bool
        Let W make the cotangents too, and B nothing; see `stage_parts`.
    keeps : bool
        Make what comes of parameters alone once for all micro-batches of an update.
    """
    part = stage_graph(graph, cut, number)
    known = {id(t) for t in trained}
    leaves = [tensors[v] for v in part.leaves]
    wanted = [t for t in leaves if id(t) in known]
    enters = cut.stages[number - 1].sends if number else ()
    ends = len(enters), len(cut.stages[number].sends)
    made = {v for node in part.nodes for v in node.outputs}
    loss = graph.outputs[0] if graph.outputs[0] in made else None
    how = again, narrow, whole, keeps
    parts = stage_parts(part, leaves, wanted, ends, loss, device, *how)
    results = tuple(graph.outputs.index(v) for v in part.outputs[ends[1] :])
    batch = {v: graph.inputs.index(v) for v in part.inputs[ends[0] :]}
    made_of = _Assembly(parts, ends[0], list(batch.values()), fuse)
    forward, back = packet_specs(graph, cut, number)
    before, behind = packet_specs(graph, cut, number - 1)
    packets = [pack(dict(enumerate(s))) for s in (forward, behind, before, back)]
    return made_of.program(number, leaves, wanted, packets, results)


class _Assembly:
    """The parts of a stage while a program is made of them."""

    def __init__(
        self, parts: StageParts, entering: int, places: Sequence[int], fuse: bool
    ) -> None:
        self.parts, self.fuse = parts, fuse
        self.entering = parts.forward.inputs[:entering]
        self.place = dict(zip(parts.forward.inputs[entering:], places, strict=True))
        later = {*parts.backward.inputs, *parts.weight.inputs} - set(parts.given)
        last = set(parts.weight.inputs)
        self.kept: dict[int, Spec] = {
            v: parts.forward.specs[v] for v in self.entering if v in later
        }
        self.kept.update(_kept(parts.forward, parts.forward_keeps))
        self.kept.update((v, parts.backward.specs[v]) for v in parts.given if v in last)
        self.kept.update(_kept(parts.backward, parts.backward_keeps))
        self.passing = {v: parts.forward.specs[v] for v in self.entering if v not in self.kept}
        self.passing.update(
            (v, parts.backward.specs[v]) for v in parts.given if v not in self.kept
        )

    def planned(self, graph: Graph) -> tuple[Plan, tuple[int, ...], tuple[int, ...]]:
        """Plan a part, and return what it is fed and what of slot and area it reads."""
        fed = tuple(v for v in graph.inputs if v in self.place)
        static = tuple(v for v in graph.inputs if v not in self.place)
        bound = replace(graph, inputs=fed, leaves=(*graph.leaves, *static))
        if self.fuse:
            bound = optimise(bound, FUSED)
        return make_plan(bound), tuple(self.place[v] for v in fed), static

    def program(
        self,
        number: int,
        leaves: list[Tensor],
        wanted: list[Tensor],
        packets: Sequence[Packing],
        results: tuple[int, ...],
    ) -> StageProgram:
        """Return the whole."""
        parts = self.parts
        plans = [self.planned(g) for g in (parts.forward, parts.backward, parts.weight)]
        (f, fed, f_reads), (b, b_fed, b_reads), (w, w_fed, w_reads) = plans
        sent, returned, received, answered = packets
        added = make_plan(replace(w.graph, outputs=w.graph.outputs[len(wanted) :]))
        return StageProgram(
            number, leaves, wanted, f, b, w, added,
            fed, (b_fed, w_fed), (f_reads, b_reads, w_reads),
            self.entering, parts.given, parts.forward_keeps, parts.backward_keeps,
            pack(self.kept), pack(self.passing), sent, returned, received, answered,
            self.planned(parts.once)[0], parts.keys, results,
        )  # fmt: skip


def _kept(graph: Graph, values: Sequence[int]) -> dict[int, Any]:
    """Return the specs of the last outputs of a part, by the numbers they are kept under."""
    first = len(graph.outputs) - len(values)
    return {
        v: graph.specs[output] for v, output in zip(values, graph.outputs[first:], strict=True)
    }
