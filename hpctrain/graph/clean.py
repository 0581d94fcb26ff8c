"""Passes that leave work out: unused, equal, known beforehand, or without effect."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpctrain.autograd import Spec, primitive
from hpctrain.autograd.bind import run_row
from hpctrain.backend import to_host
from hpctrain.graph.identities import IDENTITIES, Instead, Sight
from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.marks import AGAIN, GROUP

__all__ = ["common_subexpressions", "constants", "dead_code", "renamed", "simplify"]

_SMALL_BYTES = 256  # constants up to this size are compared by content
_KEPT_BYTES = 2**16  # a folded constant lives as long as the plan, so it must be small


def renamed(graph: Graph, nodes: list[Node], same: Mapping[int, int]) -> Graph:
    """Return the graph of ``nodes``, where ends that are keys of ``same`` become its values."""
    return replace(
        graph,
        nodes=tuple(nodes),
        outputs=tuple(same.get(v, v) for v in graph.outputs),
        assigns=tuple((leaf, same.get(v, v)) for leaf, v in graph.assigns),
    )


def dead_code(graph: Graph) -> Graph:
    """Drop nodes and constants that nothing at the end depends on."""
    needed = set(graph.kept())
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    found = {v: a for v, a in graph.constants.items() if v in needed}
    return replace(graph, nodes=tuple(reversed(kept)), constants=found)


def common_subexpressions(graph: Graph) -> Graph:
    """Compute equal things once: same pure row, attributes, inputs, and place to run."""
    same: dict[int, int] = {}
    found: dict[int, Any] = {}
    contents: dict[Any, int] = {}
    for value, array in graph.constants.items():
        key = _content(graph.specs[value], array)
        first = contents.setdefault(key, value) if key is not None else value
        same[value] = first
        if first == value:
            found[value] = array
    known: dict[Any, tuple[int, ...]] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        now = replace(node, inputs=tuple(same.get(v, v) for v in node.inputs))
        key = (node.row.name, now.attrs, now.inputs, _apart(node))
        if node.row.pure and key in known:
            same.update(zip(node.outputs, known[key], strict=True))
            continue
        known[key] = node.outputs
        nodes.append(now)
    return renamed(replace(graph, constants=found), nodes, same)


def _apart(node: Node) -> tuple[Any, ...]:
    """Return the marks of which equal nodes must have equal ones to be merged."""
    return AGAIN in node.marks, node.mark(GROUP)


def _content(spec: Spec, array: Any) -> Any:
    if spec.nbytes > _SMALL_BYTES:
        return None
    return spec, to_host(array).tobytes()


def constants(graph: Graph) -> Graph:
    """Compute now what depends on constants alone, where the result is small.

    The kernel that would have run in every run computes it, on the same device.
    """
    known = dict(graph.constants)
    folded = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        specs = [graph.specs[v] for v in node.outputs]
        small = sum(s.nbytes for s in specs) <= _KEPT_BYTES
        if not (small and node.row.pure and node.inputs and known.keys() >= {*node.inputs}):
            nodes.append(node)
            continue
        arrays = run_row(node.row, [known[v] for v in node.inputs], dict(node.attrs), specs)
        known.update(zip(node.outputs, arrays, strict=True))
        if all(array.flags.c_contiguous for array in arrays):
            folded.update(zip(node.outputs, arrays, strict=True))
        else:  # plans take constants to be contiguous, and rounding may depend on strides
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=folded)


def simplify(graph: Graph) -> Graph:
    """Apply the exact identities of `hpctrain.graph.identities`, each wherever it holds.

    One walk is enough for chains: what a node reads has been simplified before it.
    """
    maker: dict[int, Node] = {}
    same: dict[int, int] = {}
    nodes: list[Node] = []
    sight = Sight(graph.specs, maker, graph.constants)
    for node in graph.nodes:
        now = replace(node, inputs=tuple(same.get(v, v) for v in node.inputs))
        found = _settle(sight, now)
        if isinstance(found, int):
            same[now.outputs[0]] = found
            continue
        nodes.append(found)
        maker.update(dict.fromkeys(found.outputs, found))
    return renamed(graph, nodes, same)


def _settle(sight: Sight, node: Node) -> int | Node:
    """Apply identities to one node until none holds: each makes it read from further back."""
    while True:
        rule = IDENTITIES.get(node.row.name)
        found = rule(sight, node, dict(node.attrs)) if rule else None
        if isinstance(found, int):
            return found
        if not isinstance(found, Instead):
            return node
        attrs = tuple(sorted(found.attrs.items()))
        node = replace(node, row=primitive(found.name), inputs=found.inputs, attrs=attrs)
