"""Passes: pure functions from graph to graph, with a verifier that runs between them.

A pass may know a row's kind and whether it is pure, never its name.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hpctrain.autograd import Spec, primitive
from hpctrain.backend import to_host
from hpctrain.errors import ShapeError
from hpctrain.graph.fuse import fuse
from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.marks import AGAIN
from hpctrain.graph.native import available

__all__ = [
    "EXACT", "FUSED", "PASSES", "common_subexpressions", "dead_code", "optimise",
    "own_outputs", "schedule", "verify",
]  # fmt: skip

_SMALL_BYTES = 256  # constants up to this size are compared by content


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


def dead_code(graph: Graph) -> Graph:
    """Drop nodes and constants that nothing at the end depends on."""
    needed = set(graph.kept())
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    constants = {v: a for v, a in graph.constants.items() if v in needed}
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)


def common_subexpressions(graph: Graph) -> Graph:
    """Compute equal things once: same pure row, same attributes, same inputs."""
    same: dict[int, int] = {}
    constants: dict[int, Any] = {}
    contents: dict[Any, int] = {}
    for value, array in graph.constants.items():
        key = _content(graph.specs[value], array)
        first = contents.setdefault(key, value) if key is not None else value
        same[value] = first
        if first == value:
            constants[value] = array
    known: dict[Any, tuple[int, ...]] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        renamed = replace(node, inputs=tuple(same.get(v, v) for v in node.inputs))
        key = (node.row.name, renamed.attrs, renamed.inputs, AGAIN in node.marks)
        if node.row.pure and key in known:
            same.update(zip(node.outputs, known[key], strict=True))
            continue
        known[key] = node.outputs
        nodes.append(renamed)
    return replace(
        graph,
        nodes=tuple(nodes),
        constants=constants,
        outputs=tuple(same.get(v, v) for v in graph.outputs),
        assigns=tuple((leaf, same.get(v, v)) for leaf, v in graph.assigns),
    )


def _content(spec: Spec, array: Any) -> Any:
    if spec.nbytes > _SMALL_BYTES:
        return None
    return spec, to_host(array).tobytes()


def schedule(graph: Graph) -> Graph:
    """Delay each node to just before its first user where that shortens lifetimes.

    The captured order is right already: forward, then backward, each gradient as soon as it
    can be known. What gains is to move those nodes that make more bytes than they free
    (a mask, a copy, a spread-out scalar) next to whoever needs them.
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
        if made > saved and not outside.intersection(node.outputs):
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
    taken: set[int] = set()

    def own(value: int) -> int:
        if value in writes and value not in taken:
            taken.add(value)
            return value
        fresh = max(specs) + 1
        specs[fresh] = specs[value]
        copies.setdefault(value, []).append(Node(primitive("identity"), (value,), (fresh,)))
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
    "dead_code": dead_code,
    "common_subexpressions": common_subexpressions,
    "own_outputs": own_outputs,
    "fuse": lambda graph: fuse(graph, compiled=available()),
    "schedule": schedule,
}
FUSED = tuple(PASSES)
EXACT = tuple(name for name in PASSES if name != "fuse")


def optimise(graph: Graph, names: Iterable[str] = EXACT) -> Graph:
    """Run the named passes in order, verifying the graph before, between and after.

    The passes of `EXACT` leave every bit as in eager execution; `FUSED` adds ``fuse``, after
    which results are the same within rounding.
    """
    verify(graph)
    for name in names:
        graph = verify(PASSES[name](graph))
    return graph
