"""A graph whose nodes run on several ranks: what each rank computes, receives and sends.

Every rank makes the whole division from the same graph, so nobody has to be asked. A rank runs
its nodes in the order of the graph, and a value leaves for another rank when it is made, in
that order, too. So all ranks follow one order, and cannot wait for each other in a circle.
Edges may go forward and back between ranks as often as they like.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.marks import GROUP
from hpctrain.graph.passes import optimise
from hpctrain.graph.plan import Plan, make_plan

__all__ = ["Leg", "Mail", "Share", "divide", "node_ranks"]


@dataclass(frozen=True, slots=True)
class Mail:
    """A value on its way; ``peer`` sends or receives it, under a number of this pair's."""

    value: int
    peer: int
    number: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Leg:
    """Steps ``start`` up to ``stop``: what must have come before, and leaves behind them."""

    start: int
    stop: int
    needs: tuple[Mail, ...]
    sends: tuple[Mail, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank does of a graph.

    Attributes
    ----------
    plan : Plan
        Its inputs are what is fed here, and what is received.
    fed, leaves : tuple of int
        Inputs of the whole graph that are read here, and leaves, by its numbers.
    received : tuple of Mail
        In the order in which they are read.
    results : tuple of int
        The values of the whole graph that are outputs of the plan: for other ranks, or asked
        for here.
    legs : tuple of Leg
        All steps of the plan in order.
    """

    plan: Plan
    fed: tuple[int, ...]
    leaves: tuple[int, ...]
    received: tuple[Mail, ...]
    results: tuple[int, ...]
    legs: tuple[Leg, ...]


def node_ranks(
    graph: Graph, ranks: Mapping[str, int], known: Mapping[int, Collection[int]], rest: int
) -> list[int]:
    """Return the rank of each node.

    Parameters
    ----------
    graph : Graph
    ranks : mapping of str to int
        By the mark `hpctrain.graph.marks.GROUP`.
    known : mapping of int to collection of int
        Inputs and leaves that are on some ranks only; nodes without a mark go with what they
        read, or with who reads them.
    rest : int
        Of the others.
    """
    home: dict[int, int | None] = {v: min(where) for v, where in known.items() if where}
    found: list[int | None] = []
    for node in graph.nodes:
        group = node.mark(GROUP)
        near = (home[v] for v in node.inputs if home.get(v) is not None)
        found.append(next(near, None) if group is None else ranks[group])
        home.update(dict.fromkeys(node.outputs, found[-1]))
    for place in reversed(range(len(found))):
        node = graph.nodes[place]
        if found[place] is None:
            found[place] = next((home[v] for v in node.outputs if home[v] is not None), rest)
        for value in node.inputs:
            if value in home and home[value] is None:
                home[value] = found[place]
    return [rest if rank is None else rank for rank in found]


class _Walk:
    """The shares of all ranks while the nodes are gone through in order."""

    def __init__(
        self, graph: Graph, known: Mapping[int, Collection[int]], names: Mapping[int, str]
    ) -> None:
        self.graph, self.names = graph, names
        self.maker = {v: node for node in graph.nodes for v in node.outputs}
        self.here = {v: set(where) for v, where in known.items()}
        self.home = {v: min(where) for v, where in known.items() if where}
        self.nodes: dict[int, list[Node]] = {}
        self.received: dict[int, list[Mail]] = {}
        self.sent: dict[int, list[Mail]] = {}
        self._numbers: dict[tuple[int, int], int] = {}

    def add(self, node: Node, rank: int) -> None:
        """Let a node run on a rank, and what it reads come there."""
        for value in node.inputs:
            self.bring(value, rank)
        self.nodes.setdefault(rank, []).append(node)
        for value in node.outputs:
            self.here.setdefault(value, set()).add(rank)
            self.home.setdefault(value, rank)

    def bring(self, value: int, rank: int) -> None:
        """Let a value be on a rank; what is nowhere in particular is everywhere."""
        where = self.here.get(value)
        if where is None or rank in where:
            return
        maker = self.maker.get(value)
        if maker is not None and self._is_as_large(maker):
            # The view is made anew: a kernel may round otherwise for other strides.
            self.add(maker, rank)
            return
        source = self.home[value]
        number = self._numbers.get((source, rank), 0)
        self._numbers[source, rank] = number + 1
        name = self.names.get(value, "")
        self.sent.setdefault(source, []).append(Mail(value, rank, number, name))
        self.received.setdefault(rank, []).append(Mail(value, source, number, name))
        where.add(rank)

    def _is_as_large(self, node: Node) -> bool:
        specs = self.graph.specs
        return (
            node.row.view is not None
            and specs[node.inputs[0]].nbytes == specs[node.outputs[0]].nbytes
        )


def divide(
    graph: Graph,
    ranks: Sequence[int],
    known: Mapping[int, Collection[int]],
    wanted: Sequence[tuple[int, int]],
    rank: int,
    names: Mapping[int, str] = MappingProxyType({}),
) -> Share:
    """Return the share of one rank in a graph.

    Parameters
    ----------
    graph : Graph
    ranks : sequence of int
        Of each node.
    known : mapping of int to collection of int
        Where inputs and leaves are that are not on all ranks.
    wanted : sequence of (value, rank)
        What must be on a rank at the end.
    rank : int
    names : mapping of int to str, optional
        What to call values in messages.
    """
    walk = _Walk(graph, known, names)
    for node, where in zip(graph.nodes, ranks, strict=True):
        walk.add(node, where)
    for value, where in wanted:
        walk.bring(value, where)
    assigns = [(leaf, source, walk.home.get(leaf, rank)) for leaf, source in graph.assigns]
    for _, source, where in assigns:
        walk.bring(source, where)
    received = walk.received.get(rank, [])
    sent = walk.sent.get(rank, [])
    asked = [v for v, where in wanted if where == rank]
    come = {mail.value for mail in received}
    # What is fed is there anyway; if it is sent, it is copied, as it may change behind that.
    made = [v for v in asked if v not in come and v not in graph.inputs]
    results = tuple(dict.fromkeys([*(mail.value for mail in sent), *made]))
    part = replace(
        graph,
        nodes=tuple(walk.nodes.get(rank, ())),
        inputs=(*graph.inputs, *(mail.value for mail in received)),
        outputs=results,
        assigns=tuple((leaf, source) for leaf, source, where in assigns if where == rank),
    )
    return _planned(part, graph, received, sent)


def _planned(
    part: Graph, graph: Graph, received: Sequence[Mail], sent: Sequence[Mail]
) -> Share:
    results = part.outputs
    used = {v for node in part.nodes for v in node.inputs}
    used.update(part.outputs, (v for pair in part.assigns for v in pair))
    come = tuple(mail.value for mail in received)
    fed = tuple(v for v in graph.inputs if v in used and v not in come)
    leaves = tuple(v for v in graph.leaves if v in used)
    constants = {v: array for v, array in graph.constants.items() if v in used}
    part = replace(part, inputs=(*fed, *come), leaves=leaves, constants=constants)
    plan = make_plan(optimise(part, ("dead_code", "own_outputs", "schedule")))
    places = dict(zip(results, plan.graph.outputs, strict=True))
    return Share(
        plan, fed, leaves, tuple(received), results, _legs(plan, received, sent, places)
    )


def _legs(
    plan: Plan, received: Sequence[Mail], sent: Sequence[Mail], places: Mapping[int, int]
) -> tuple[Leg, ...]:
    """Cut the steps before what waits for a message, and behind what makes one."""
    nodes = plan.graph.nodes
    made = {v: step for step, node in enumerate(nodes) for v in node.outputs}
    first: dict[int, int] = {}
    for step, node in enumerate(nodes):
        for value in node.inputs:
            first.setdefault(value, step)
    end = len(nodes)
    begins = {mail: first.get(mail.value, end) for mail in received}
    ready = {mail: made[places[mail.value]] + 1 for mail in sent}
    edges = sorted({0, end, *begins.values(), *ready.values()})
    legs = [
        Leg(
            start,
            stop,
            tuple(mail for mail in received if begins[mail] == start),
            tuple(mail for mail in sent if ready[mail] == stop),
        )
        for start, stop in pairwise(edges)
    ]
    last = tuple(mail for mail in received if begins[mail] == end)  # nothing here reads it
    return (*legs, Leg(end, end, last, ()))
