"""The passes in their order, and the verifier that runs between them.

A pass is a pure function from graph to graph. It may know a row's kind and its fields, not its
name, but for what `hpctrain.graph.identities` says of names.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from hpctrain.autograd import primitive
from hpctrain.errors import ShapeError
from hpctrain.graph.clean import common_subexpressions, constants, dead_code, simplify
from hpctrain.graph.expand import expand
from hpctrain.graph.finish import finish
from hpctrain.graph.fuse import fuse
from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.native import available
from hpctrain.graph.transposes import layout

__all__ = [
    "EXACT", "FUSED", "PASSES", "common_subexpressions", "constants", "dead_code", "layout",
    "optimise", "own_outputs", "schedule", "simplify", "verify",
]  # fmt: skip


def verify(graph: Graph) -> Graph:
    """Check that ``graph`` is legal and return it.

    Every value is defined once and before its first use, every node's outputs are what its
    rule infers, and outputs and assignments exist.

    Raises
    ------
    ShapeError
        Naming the first bad node.
    """
    defined = {*graph.inputs, *graph.leaves, *graph.constants}
    for place, node in enumerate(graph.nodes):
        where = f"graph node {place} ({node})"
        for value in node.inputs:
            if value not in defined:
                raise ShapeError(f"{where}: reads %{value}, which is not defined before it")
        inferred = node.row.infer([graph.specs[v] for v in node.inputs], **dict(node.attrs))
        stated = [graph.specs[v] for v in node.outputs]
        if list(inferred) != stated:
            raise ShapeError(f"{where}: states {stated}, its rule gives {list(inferred)}")
        for value in node.outputs:
            if value in defined:
                raise ShapeError(f"{where}: defines %{value} a second time")
            defined.add(value)
    _verify_ends(graph, defined)
    return graph


def _verify_ends(graph: Graph, defined: set[int]) -> None:
    for value in graph.kept():
        if value not in defined:
            raise ShapeError(f"graph: %{value} is asked for, but nothing defines it")
    for leaf, source in graph.assigns:
        if leaf not in graph.leaves or graph.specs[leaf] != graph.specs[source]:
            raise ShapeError(f"graph: cannot assign %{source} to %{leaf}")


def schedule(graph: Graph) -> Graph:
    """Delay each node to just before its first user where that shortens lifetimes.

    The captured order is right already: forward, then backward, each gradient as soon as it
    can be known. What gains is to move those nodes that make more bytes than they free
    (a mask, a copy, a spread-out scalar) next to whoever needs them. Nodes that are not pure
    stay in their order: they may wait for other ranks, whose parts of a batch are of other
    sizes.
    """
    places = range(len(graph.nodes))
    last = {v: i for i in places for v in graph.nodes[i].inputs}
    outside = {*graph.kept(), *graph.leaves, *graph.constants, *graph.inputs}
    users: dict[int, list[int]] = {}
    for place in places:
        for value in graph.nodes[place].inputs:
            users.setdefault(value, []).append(place)
    anchor = list(places)
    for place in reversed(places):
        node = graph.nodes[place]
        freed = {v for v in node.inputs if last[v] == place and v not in outside}
        saved = sum(graph.specs[v].nbytes for v in freed)
        made = sum(graph.specs[v].nbytes for v in node.outputs)
        free = node.row.pure and not outside.intersection(node.outputs)
        if made > saved and free:
            # Never before its own place, and never after a user's anchor: still a legal order.
            anchor[place] = min(anchor[u] for v in node.outputs for u in users.get(v, [place]))
    order = sorted(places, key=lambda place: (anchor[place], place))
    return replace(graph, nodes=tuple(graph.nodes[place] for place in order))


def own_outputs(graph: Graph) -> Graph:
    """Give every output a node of its own that writes it.

    An output that is an input, a leaf, a constant, a view or another output gets a copy, so
    that it can be bound to an array outside. State takes its new value from a node, too, so
    that two states can be exchanged.
    """
    specs = dict(graph.specs)
    writes = {v for n in graph.nodes if n.row.view is None for v in n.outputs}
    copies: dict[int, list[Node]] = {}
    marks = {v: node.marks for node in graph.nodes for v in node.outputs}
    taken: set[int] = set()

    def own(value: int) -> int:
        if value in writes and value not in taken:
            taken.add(value)
            return value
        fresh = max(specs) + 1
        specs[fresh] = specs[value]
        copy = Node(primitive("identity"), (value,), (fresh,), (), marks.get(value, ()))
        copies.setdefault(value, []).append(copy)
        return fresh

    outputs = tuple(own(value) for value in graph.outputs)
    assigns = tuple((leaf, v if v in writes else own(v)) for leaf, v in graph.assigns)
    nodes = [copy for v in copies if v not in _made(graph) for copy in copies[v]]
    for node in graph.nodes:
        nodes.append(node)
        nodes.extend(copy for v in node.outputs for copy in copies.get(v, ()))
    return replace(graph, nodes=tuple(nodes), specs=specs, outputs=outputs, assigns=assigns)


def _made(graph: Graph) -> set[int]:
    return {v for node in graph.nodes for v in node.outputs}


PASSES: dict[str, Callable[[Graph], Graph]] = {
    "constants": constants,
    "simplify": simplify,
    "common_subexpressions": common_subexpressions,
    "dead_code": dead_code,
    "layout": layout,
    "expand": lambda graph: expand(graph) if available() else graph,
    "own_outputs": own_outputs,
    "fuse": lambda graph: fuse(graph, compiled=available()),
    "finish": finish,
    "schedule": schedule,
}
FUSED = tuple(PASSES)
EXACT = tuple(name for name in PASSES if name not in ("expand", "fuse", "finish"))


def optimise(graph: Graph, names: Iterable[str] = EXACT) -> Graph:
    """Run the named passes in order, verifying the graph before, between and after.

    The passes of `EXACT` leave every bit as in eager execution. `FUSED` adds ``expand``,
    ``fuse`` and ``finish``, after which results are the same within rounding.
    """
    verify(graph)
    for name in names:
        graph = verify(PASSES[name](graph))
    return graph
