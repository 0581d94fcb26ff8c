"""A model that the ranks of a team share: which part of each parameter this rank has.

The model itself stays as it is, and knows nothing of it. It is captured, and carried out by the
rules of `hpctrain.parallel.share_rules`, node by node, on what this rank has: under the capture
that plans a step, so that gradients follow from those of the operations, as ever.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from hpctrain.autograd import Spec, Tensor, assign, pause
from hpctrain.autograd.mode import interpreted_by, is_training
from hpctrain.backend import CPU, Device
from hpctrain.errors import ConfigError
from hpctrain.graph.capture import Capture, capture
from hpctrain.graph.ir import Graph
from hpctrain.graph.marks import marked
from hpctrain.nn import Parameter
from hpctrain.ops.cut import Cut, Team
from hpctrain.parallel.hollow import hollow, refill
from hpctrain.parallel.program import Objective
from hpctrain.parallel.share_moves import elementwise
from hpctrain.parallel.share_rules import RULES, everywhere
from hpctrain.parallel.shares import Again, Forms, Share

__all__ = [
    "Division", "SharedObjective", "divide", "local_parameters", "shared", "take_part",
]  # fmt: skip

Specs = tuple[Sequence[Spec], Sequence[Spec]]


@dataclass(frozen=True, slots=True)
class Division:
    """How a model is divided over a team.

    Attributes
    ----------
    names : tuple of str
        Of all parameters and layer state.
    specs : tuple of Spec
        Of the whole ones.
    cuts : tuple of Cut or None
    patterns : mapping of int to (int, int)
        See `hpctrain.parallel.shares.Forms`.
    sequence : bool
    """

    names: tuple[str, ...]
    specs: tuple[Spec, ...]
    cuts: tuple[Cut | None, ...]
    patterns: Mapping[int, tuple[int, int]]
    sequence: bool

    def cut_of(self, name: str) -> Cut | None:
        """Return how a parameter is cut, None for one that every rank has whole."""
        return self.cuts[self.names.index(name)]

    def describe(self, team: Team) -> str:
        """Return what is cut as a table."""
        rows = [
            f"{name:<40}{spec!s:<24}{cut or 'whole'}"
            for name, spec, cut in zip(self.names, self.specs, self.cuts, strict=True)
        ]
        return "\n".join(rows)


@dataclass(frozen=True, slots=True)
class SharedObjective(Objective):
    """An objective of which this rank computes its share.

    Attributes
    ----------
    plain : Objective
        That of the whole model.
    whole : sequence of Tensor
        Parameters of the whole model, of which only shapes are looked at.
    mine : sequence of Tensor
        This rank's parts of them.
    division : Division
    team : Team
    """

    plain: Objective = field(kw_only=True)
    whole: Sequence[Tensor] = field(kw_only=True)
    mine: Sequence[Tensor] = field(kw_only=True)
    division: Division = field(kw_only=True)
    team: Team = field(kw_only=True)

    def __call__(self, inputs: Sequence[Any], targets: Sequence[Any]) -> tuple[Any, ...]:
        """Return the losses, then the number of right answers, then the outputs, all whole."""
        specs = [t.spec for t in inputs], [t.spec for t in targets]
        device, training = inputs[0].device, is_training()
        graph = _captured(self.plain, specs, self.whole, device, training)
        places = {leaf: place for place, leaf in enumerate(graph.leaves)}

        def part(leaf: int, cut: Cut | None) -> Any:
            return self.mine[places[leaf]]

        cuts = dict(zip(graph.leaves, self.division.cuts, strict=True))
        patterns = dict(self.division.patterns)
        forms = Forms(self.team, part, cuts, patterns, self.division.sequence)
        return tuple(_carried_out(graph, forms, [*inputs, *targets], device))


def shared(
    objective: Objective,
    whole: Sequence[Tensor],
    mine: Sequence[Tensor],
    division: Division,
    team: Team,
) -> SharedObjective:
    """Return the share of this rank in an objective; see `SharedObjective`."""
    same = {f.name: getattr(objective, f.name) for f in fields(objective)}
    return SharedObjective(
        **same, plain=objective, whole=whole, mine=mine, division=division, team=team
    )


def divide(
    objective: Objective,
    parameters: Mapping[str, Any],
    specs: Specs,
    team: Team,
    device: Device = CPU,
    sequence: bool = True,
) -> Division:
    """Decide how a model is divided over a team: the same on all ranks.

    Parameters
    ----------
    objective : Objective
    parameters : mapping of str to Parameter
        Of the whole model; only their shapes are looked at.
    specs : (specs of the inputs, specs of the targets)
        Of a batch.
    team : Team
    device : Device
    sequence : bool
        Divide what is between the layers along the sequence, too.

    Raises
    ------
    ConfigError
        If no parameter can be divided.
    """
    whole = [p.data() for p in parameters.values()]
    graph = _captured(objective, specs, whole, device, training=True)
    forced: dict[int, Cut | None] = {}
    patterns: dict[int, tuple[int, int]] = {}
    for _ in range(2 * len(graph.nodes) + 2):
        cuts = dict(forced)
        try:
            _tried(graph, team, cuts, patterns, sequence, forced, device)
            break
        except Again:
            continue
    found = tuple(cuts.get(leaf) for leaf in graph.leaves)
    if team.size > 1 and not any(found):
        raise ConfigError(
            f"parallel.tensor: got {team.size} ranks, but the model has no layer that so many "
            "could share; lower it to the heads, channels or units of a layer, or leave it at 1"
        )
    specs_ = tuple(t.spec for t in whole)
    return Division(tuple(parameters), specs_, found, patterns, sequence)


def local_parameters(
    parameters: Mapping[str, Any], division: Division, team: Team, device: Device = CPU
) -> dict[str, Parameter]:
    """Make this rank's parts of parameters, without memory; see `hpctrain.parallel.hollow`.

    They have the names and factors of the whole ones. `take_part` gives them values.
    """
    found = {}
    for name, whole in parameters.items():
        cut, shape = division.cut_of(name), tuple(whole.shape)
        part = Parameter(
            whole.name,
            shape if cut is None else cut.shape(shape, team),
            whole.dtype,
            "zeros",
            whole.grad_req,
            whole.lr_mult,
            whole.wd_mult,
            whole.differentiable,
        )
        part.initialize(ctx=device)
        hollow(part)
        found[name] = part
    return found


def take_part(part: Parameter, array: Any, cut: Cut | None, team: Team) -> None:
    """Give a parameter memory, and this rank's part of a whole array."""
    refill(part)
    part.set_data(array if cut is None else cut.part(np.ascontiguousarray(array), team))


def _captured(
    objective: Objective, specs: Specs, leaves: Sequence[Tensor], device: Device, training: bool
) -> Graph:
    count = len(specs[0])

    def function(*tensors: Any) -> tuple[Any, ...]:
        found = objective(tensors[:count], tensors[count:])
        return found[:2] if training else found

    return capture(function, [*specs[0], *specs[1]], leaves, device, training)


def _tried(  # noqa: PLR0913 (what a division depends on)
    graph: Graph,
    team: Team,
    cuts: dict[int, Cut | None],
    patterns: dict[int, tuple[int, int]],
    sequence: bool,
    forced: dict[int, Cut | None],
    device: Device,
) -> None:
    """Go through the model once, without arrays; raises `Again` if it must be done again."""
    tracer = Capture((), device)

    def part(leaf: int, cut: Cut | None) -> Any:
        spec = graph.specs[leaf]
        return tracer.input(spec if cut is None else cut.spec(spec, team))

    with interpreted_by(tracer), pause(train_mode=True):
        inputs = [tracer.input(graph.specs[v]) for v in graph.inputs]
        forms = Forms(team, part, cuts, patterns, sequence)
        _carried_out(graph, forms, inputs, device, forced)


def _carried_out(
    graph: Graph,
    forms: Forms,
    inputs: Sequence[Any],
    device: Device,
    forced: dict[int, Cut | None] | None = None,
) -> list[Any]:
    """Apply the nodes of a graph by the rules, and return its outputs, whole.

    ``forced``: nothing is assigned; state that is not divided as its new value is goes there.
    """
    shares = {v: Share(graph.specs[v], leaf=v) for v in graph.leaves}
    for leaf in set(graph.leaves) & set(forms.cuts):
        forms.settle(shares[leaf])
    shares.update(
        (v, Share(graph.specs[v], t, fixed=True))
        for v, t in zip(graph.inputs, inputs, strict=True)
    )
    for value, array in graph.constants.items():
        spec = graph.specs[value]
        shares[value] = Share(spec, Tensor.from_value(array, spec, device), fixed=True)
    for place, node in enumerate(graph.nodes):
        forms.place = place
        rule = RULES.get(node.row.name)
        if rule is None:
            rule = elementwise if node.row.kind == "elementwise" else everywhere
        with marked(**dict(node.marks)):
            ins, specs = (
                [shares[v] for v in node.inputs],
                [graph.specs[v] for v in node.outputs],
            )
            shares.update(zip(node.outputs, rule(forms, node, ins, specs), strict=True))
    for leaf, source in graph.assigns:
        _assigned(forms, shares[leaf], shares[source], forced)
    return [forms.whole(shares[v]) for v in graph.outputs]


def _assigned(
    forms: Forms, leaf: Share, source: Share, forced: dict[int, Cut | None] | None
) -> None:
    """Let state take its new value."""
    forms.settle(leaf)
    if forced is None:
        cut = leaf.cut
        assign(leaf.tensor, forms.whole(source) if cut is None else forms.part(source, cut))
    elif leaf.cut is None and source.cut is not None and leaf.leaf not in forced:
        forced[leaf.leaf] = source.cut
        raise Again
