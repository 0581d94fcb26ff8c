"""The three parts of a pipeline stage's work as graphs: F, B and W.

The gradient of a stage comes from the rules of the operations, as everywhere: the stage's part
of the graph is applied again under a capture, and pulled back from what it sends. The joint
graph is then cut twice. F is what the outputs need; B what the cotangents of the entering
values need beside that; W all the rest, which is for gradients of parameters alone. A rule that
gives both at once, such as that of attention, is in B.

What one part makes and a later one reads is *kept* for its micro-batch in between, under the
number that it has in the later graph.

References
----------
Qi, Wan, Huang and Lin, "Zero bubble pipeline parallelism", ICLR 2024, arXiv 2401.10241.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.autograd import Spec, Tensor, apply, apply_row, pause, record
from hpctrain.autograd.backward import pull_back
from hpctrain.autograd.mode import interpreted_by
from hpctrain.backend import CPU, Device
from hpctrain.graph.capture import Capture
from hpctrain.graph.derived import derived, nothing_derived
from hpctrain.graph.ir import Graph
from hpctrain.graph.marks import marked
from hpctrain.graph.passes import EXACT, optimise
from hpctrain.graph.precision import narrow as rounded
from hpctrain.graph.split import split

__all__ = ["StageParts", "stage_parts"]

_TOGETHER = EXACT[: EXACT.index("own_outputs")]  # before the parts are divided


@dataclass(frozen=True, slots=True)
class StageParts:
    """What a stage computes for one micro-batch.

    Attributes
    ----------
    forward : Graph
        Inputs: those of the stage. Outputs: those of the stage, then what is kept.
    backward : Graph
        Inputs: kept values by their numbers, then the cotangents of what the stage sends, and
        the weight of the loss if that is made here. Outputs: cotangents of the entering
        values that have any, then what else is kept.
    weight : Graph
        Inputs: kept values by their numbers. Outputs: the gradients; the cotangents of the
        entering values behind them if B makes none.
    given : tuple of int
        The last inputs of ``backward``, which are not kept from ``forward``.
    once : Graph
        What is made of parameters alone, for all micro-batches of an update: the last leaves
        of the other parts.
    keys : tuple
        What these values are made of; see `hpctrain.graph.derived`.
    forward_keeps, backward_keeps : tuple of int
        Numbers of the last outputs of ``forward`` and ``backward``, which are kept. Inputs of
        both parts are to be kept too, where a later part reads them.
    """

    forward: Graph
    backward: Graph
    weight: Graph
    given: tuple[int, ...]
    once: Graph
    keys: tuple[Hashable, ...]
    forward_keeps: tuple[int, ...]
    backward_keeps: tuple[int, ...]


def stage_parts(  # noqa: PLR0913 (a stage of a model)
    part: Graph,
    leaves: Sequence[Tensor],
    wanted: Sequence[Tensor],
    ends: tuple[int, int],
    loss: int | None = None,
    device: Device = CPU,
    again: Callable[[Graph], Graph] | None = None,
    narrow: bool = False,
    whole: bool = False,
    keeps: bool = True,
) -> StageParts:
    """Make the graphs of F, B and W of one stage.

    Parameters
    ----------
    part : Graph
        Of `hpctrain.parallel.cut_graph.stage_graph`.
    leaves : sequence of Tensor
        The leaves of ``part``.
    wanted : sequence of Tensor
        Those of them that are trained: one gradient each, zeros where there is none.
    ends : (entering, leaving)
        How many of the inputs of ``part`` come from the stage before, and how many of its
        outputs go to the next: the first ones. Those of floating dtype have cotangents.
    loss : int, optional
        The output of ``part`` that is made small, if it is made here.
    device : Device
    again : callable, optional
        Lets B and W compute values again: from the graph of all three parts to the same with
        more nodes; see `hpctrain.graph.recompute`.
    narrow : bool
        Round factors of products to bfloat16; see `hpctrain.graph.precision`.
    whole : bool
        Leave B empty: W makes the cotangents too.
    keeps : bool
        Make what comes of parameters alone once for all micro-batches of an update.

    Returns
    -------
    StageParts
        Optimised, each by itself.
    """
    joint, (outputs, cotangents, given) = _joint(part, leaves, wanted, ends, loss, device)
    if narrow:
        joint = rounded(joint)
    joint = optimise(joint, _TOGETHER)
    apart = derived(joint) if keeps else nothing_derived(joint)
    joint = apart.rest if again is None else again(apart.rest)
    front, back, saved = split(optimise(joint, _TOGETHER), outputs, given)
    middle, rest, later = split(back, 0 if whole else cotangents, 0)
    if whole:
        made = rest.outputs
        rest = replace(rest, outputs=(*made[cotangents:], *made[:cotangents]))
    kept = tuple(v for v in saved if v not in front.inputs)
    more = tuple(v for v in later if v not in middle.inputs)
    return StageParts(
        optimise(replace(front, outputs=(*front.outputs, *kept))),
        optimise(replace(middle, outputs=(*middle.outputs, *more))),
        rest,
        middle.inputs[len(saved) :],
        optimise(apart.once),
        apart.keys,
        kept,
        more,
    )


def _joint(
    part: Graph,
    leaves: Sequence[Tensor],
    wanted: Sequence[Tensor],
    ends: tuple[int, int],
    loss: int | None,
    device: Device,
) -> tuple[Graph, tuple[int, int, int]]:
    """Capture a stage with its gradients; and count outputs, cotangents made and given."""
    tracer = Capture(leaves, device)
    inputs = [tracer.input(part.specs[v], part.names.get(v, "")) for v in part.inputs]
    entering = [t for t in inputs[: ends[0]] if _has_cotangent(t.spec)]
    for tensor in entering:
        tensor.attach_grad()
    with interpreted_by(tracer), record(train_mode=True):
        values = _applied(part, inputs, leaves, tracer)
        outputs = [values[v] for v in part.outputs]
        with pause(train_mode=True), marked(part="backward"):
            sent = [t for t in outputs[: ends[1]] if _has_cotangent(t.spec)]
            given = [tracer.input(t.spec, "cotangent") for t in sent]
            pairs = list(zip(sent, given, strict=True))
            if loss is not None:
                weight = tracer.input(Spec((), values[loss].dtype), "weight")
                spread = apply("broadcast_to", weight, shape=values[loss].shape)
                given.append(weight)
                pairs.append((values[loss], spread))
            pairs = [(t, g) for t, g in pairs if t.requires_grad]
            heads, cotangents = [t for t, _ in pairs], [g for _, g in pairs]
            found = pull_back(heads, cotangents, entering)[1]
            ready = [
                found[id(t)] if id(t) in found else apply("zeros_like", t)
                for t in (*entering, *wanted)
            ]
        joint = tracer.finish([*outputs, *ready])
    return joint, (len(outputs), len(entering), len(given))


def _applied(
    part: Graph, inputs: Sequence[Any], leaves: Sequence[Tensor], tracer: Capture
) -> dict[int, Any]:
    """Apply the nodes of a graph to tensors, and return all values as tensors."""
    values: dict[int, Any] = dict(zip(part.inputs, inputs, strict=True))
    values.update(zip(part.leaves, leaves, strict=True))
    for value, array in part.constants.items():
        values[value] = Tensor.from_value(array, part.specs[value], tracer.device)
    for node in part.nodes:
        with marked(**dict(node.marks)):
            made = apply_row(node.row, [values[v] for v in node.inputs], dict(node.attrs))
        values.update(zip(node.outputs, made, strict=True))
    for leaf, source in part.assigns:
        tracer.assign(values[leaf], values[source])
    return values


def _has_cotangent(spec: Spec) -> bool:
    return spec.dtype.kind == "f"
