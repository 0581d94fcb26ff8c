"""A symbol whose nodes have places, captured, and divided over the ranks of these places.

Forward and backward are captured as one graph, which is the one that a single rank runs: so
the bits are the same. What a gradient rule adds runs where the operation runs that it is of.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpctrain.autograd import Spec, Tensor, pause, record
from hpctrain.autograd.backward import pull_back
from hpctrain.autograd.mode import interpreted_by
from hpctrain.backend import Device
from hpctrain.graph.capture import Capture
from hpctrain.graph.ir import Graph
from hpctrain.graph.marks import BACKWARD, NAME, marked
from hpctrain.graph.passes import EXACT, optimise
from hpctrain.graph.split import split
from hpctrain.parallel.scattered import Share, divide, node_ranks
from hpctrain.symbol.evaluate import run
from hpctrain.symbol.node import Entry, auxiliary, in_order
from hpctrain.symbol.placing import place_of

__all__ = ["STREAM", "Passes", "PlacedSymbol"]

STREAM = Spec((3,), np.dtype(np.uint64))
_TOGETHER = EXACT[: EXACT.index("own_outputs")]  # before the parts are divided


@dataclass(frozen=True, slots=True)
class Passes:
    """What one rank does for one kind of batch.

    Attributes
    ----------
    inputs, leaves : dict of str to int
        Values of the arguments; of state, and of streams by the names of their nodes.
    forward : Share
    backward : Share or None
    outputs : tuple of (value, rank, Spec)
        The heads, and where they are made.
    cotangents : dict of int to int
        By head: the value of its cotangent.
    gradients : dict of str to int
        Values of the gradients that are wanted, by argument.
    """

    inputs: dict[str, int]
    leaves: dict[str, int]
    forward: Share
    backward: Share | None
    outputs: tuple[tuple[int, int, Spec], ...]
    cotangents: dict[int, int]
    gradients: dict[str, int]


class PlacedSymbol:
    """A symbol as `hpctrain.symbol.placing.placed` returns it.

    Parameters
    ----------
    heads : sequence of (Node, int)

    Attributes
    ----------
    arguments, states, drawing : dict of str to int
        Places of arguments and state, and of the nodes that draw random numbers, by name.
    """

    def __init__(self, heads: Sequence[Entry]) -> None:
        self._heads, self._nodes = list(heads), in_order(heads)
        state = auxiliary(self._nodes)
        plain = [node for node in self._nodes if node.operator is None]
        self._plain = [node for node in plain if id(node) not in state]
        self._state = [node for node in plain if id(node) in state]
        self._drawing = [n for n in self._nodes if n.operator is not None and n.operator.random]
        self.arguments = {node.name: place_of(node) for node in self._plain}
        self.states = {node.name: place_of(node) for node in self._state}
        self.drawing = {node.name: place_of(node) for node in self._drawing}

    def passes(  # noqa: PLR0913 (what a division depends on)
        self,
        specs: Mapping[str, Spec],
        fed: Collection[str],
        wanted: Collection[str],
        training: bool,
        ranks: Sequence[int],
        rank: int,
        device: Device,
    ) -> Passes:
        """Return what a rank does for a kind of batch.

        Parameters
        ----------
        specs : mapping of str to Spec
            Of arguments and state.
        fed : collection of str
            Arguments that every rank has; others are where their places are.
        wanted : collection of str
            Arguments whose gradients are wanted; no backward part without any.
        training : bool
        ranks : sequence of int
            Of the places.
        rank : int
        device : Device
        """
        traced = _Traced(self, specs, wanted, training, device)
        joint = optimise(traced.graph, _TOGETHER)
        home = {v: {ranks[self.arguments[n]]} for n, v in traced.inputs.items() if n not in fed}
        where = {**self.states, **self.drawing}
        home |= {v: {ranks[where[n]]} for n, v in traced.leaves.items()}
        numbers = {str(place): ranks[place] for place in range(len(ranks))}

        def placed(graph: Graph, known: Mapping[int, Collection[int]]) -> list[int]:
            return node_ranks(graph, numbers, known, ranks[0])

        targets = [ranks[self.arguments[name]] for name in traced.wanted]
        return _divided(traced, joint, home, placed, (targets, ranks[0], rank))


class _Traced:
    """The graph of a symbol, unoptimised, and what its values stand for."""

    def __init__(
        self,
        symbol: PlacedSymbol,
        specs: Mapping[str, Spec],
        wanted: Collection[str],
        training: bool,
        device: Device,
    ) -> None:
        states = [_hollow(specs[node.name], device) for node in symbol._state]
        streams = [_hollow(STREAM, device) for _ in symbol._drawing]
        tracer = Capture([*states, *streams], device)
        arguments = [tracer.input(specs[node.name], node.name) for node in symbol._plain]
        names = [node.name for node in symbol._plain]
        for name, tensor in zip(names, arguments, strict=True):
            tensor.attach_grad("write" if name in wanted else "null")
        self.inputs = dict(zip(names, tracer.inputs, strict=True))
        kept = [node.name for node in (*symbol._state, *symbol._drawing)]
        self.leaves = dict(zip(kept, tracer.leaves, strict=True))
        values = {
            id(node): tensor
            for node, tensor in zip(
                (*symbol._plain, *symbol._state), (*arguments, *states), strict=True
            )
        }
        drawn = {id(n): t for n, t in zip(symbol._drawing, streams, strict=True)}
        recording = record(training) if wanted else pause(training)
        with interpreted_by(tracer), recording:
            outputs = run(symbol._nodes, symbol._heads, values, drawn)
            self.count = len(outputs)
            heads = {i: o for i, o in enumerate(outputs) if o.requires_grad}
            with pause(training), marked(part="backward"):
                given = [tracer.input(o.spec, f"cotangent{i}") for i, o in heads.items()]
                found = pull_back([*heads.values()], given)[1] if heads else {}
            self.heads = list(heads)
            gradients = {n: found.get(id(t)) for n, t in zip(names, arguments, strict=True)}
            self.wanted = [n for n, g in gradients.items() if n in wanted and g is not None]
            self.graph = tracer.finish([*outputs, *(gradients[n] for n in self.wanted)])


def _divided(
    traced: _Traced,
    joint: Graph,
    home: Mapping[int, Collection[int]],
    placed: Callable[[Graph, Mapping[int, Collection[int]]], list[int]],
    whose: tuple[Sequence[int], int, int],
) -> Passes:
    """Divide both parts; ``whose``: ranks of gradients, of what is anywhere, and this rank."""
    targets, rest, rank = whose
    front, back, saved = split(joint, traced.count, len(traced.heads))
    fronts = placed(front, home)
    made = dict(home)
    for node, where in zip(front.nodes, fronts, strict=True):
        made.update({value: {where} for value in node.outputs})
    backs = placed(back, {**home, **{v: made[v] for v in saved if v in made}})
    needs: dict[int, set[int]] = {v: set() for v in saved}
    for node, where in zip(back.nodes, backs, strict=True):
        for value in node.inputs:
            needs.get(value, set()).add(where)
    outputs = [(v, min(made.get(v, (rest,)))) for v in front.outputs]
    asked = [(v, where) for v in saved for where in sorted(needs[v])]
    names = _names(traced, joint)
    forward = divide(front, fronts, home, [*outputs, *asked], rank, names)
    backward, gradients = None, dict(zip(traced.wanted, back.outputs, strict=True))
    if traced.wanted:
        near = {v: needs[v] for v in saved if v in made}
        aims = list(zip(back.outputs, targets, strict=True))
        backward = divide(back, backs, {**home, **near}, aims, rank, names)
    cotangents = back.inputs[len(back.inputs) - len(traced.heads) :] if traced.heads else ()
    return Passes(
        traced.inputs,
        traced.leaves,
        forward,
        backward,
        tuple((v, where, joint.specs[v]) for v, where in outputs),
        dict(zip(traced.heads, cotangents, strict=True)),
        gradients,
    )


def _names(traced: _Traced, joint: Graph) -> dict[int, str]:
    """Return what a user calls the values, as far as there are words for them."""
    found = {value: name for name, value in {**traced.inputs, **traced.leaves}.items()}
    for node in joint.nodes:
        name = str(node.mark(NAME) or node.row.name)
        whole = f"gradient at {name}" if BACKWARD in node.marks else name
        found.update(dict.fromkeys(node.outputs, whole))
    return found


def _hollow(spec: Spec, device: Device) -> Tensor:
    """Return a tensor without memory, for its shape."""
    zeros = np.broadcast_to(np.zeros((), spec.dtype), spec.shape)
    made: Tensor = Tensor.from_value(zeros, spec, device)
    return made
