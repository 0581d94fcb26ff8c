"""The pass that lets a row go on with what follows it element by element.

Some kernels can add an array to their results, or apply a function, while these are in
registers still. Their rows say so (column ``then``). What follows is taken in whole or not at
all: half of it would still be a pass over memory.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpctrain.graph.fused import work_of
from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.marks import GROUP

__all__ = ["finish"]

Steps = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]


def finish(graph: Graph) -> Graph:
    """Put one node in the place of a node and its only reader, where a row does both.

    Parameters
    ----------
    graph : Graph
        After ``fuse``.

    Returns
    -------
    Graph
        The same values, as a row that goes on has the bits of rows one after the other.
    """
    places = {v: i for i, node in enumerate(graph.nodes) for v in node.outputs}
    single = _read_once(graph)
    nodes: list[Node | None] = list(graph.nodes)
    for place, last in enumerate(graph.nodes):
        own = single.intersection(last.inputs)
        for at in sorted({places.get(v, -1) for v in own}, reverse=True):
            first = nodes[at] if at >= 0 else None
            made = None if first is None else _joined(graph, first, last)
            if made is None:
                continue
            early = all(places.get(v, -1) < at for v in made.inputs)
            nodes[at], nodes[place] = (made, None) if early else (None, made)
            places.update((v, at if early else place) for v in made.outputs)
            break
    return replace(graph, nodes=tuple(node for node in nodes if node is not None))


def _read_once(graph: Graph) -> set[int]:
    """Return the values that one node reads, and nobody else needs."""
    counts = Counter(v for node in graph.nodes for v in node.inputs)
    return {v for v, count in counts.items() if count == 1}.difference(graph.kept())


def _joined(graph: Graph, first: Node, last: Node) -> Node | None:
    """Return the node that does what two do, or None."""
    if first.row.then is None or first.mark(GROUP) != last.mark(GROUP):
        return None
    found = _steps(graph, last, first.outputs[0])
    if found is None:
        return None
    after, more = found
    inputs, attrs = (*first.inputs, *more), dict(first.attrs)
    row = first.row.then([graph.specs[v] for v in inputs], after, **attrs)
    if row is None:
        return None
    marks = tuple(m for m in first.marks if m in last.marks)
    given = tuple(sorted({**attrs, "after": after}.items()))
    return Node(row, inputs, last.outputs, given, marks)


def _steps(graph: Graph, node: Node, value: int) -> tuple[Steps, list[int]] | None:
    """Return what becomes of ``value`` in a node, one step after the other, and what it takes.

    None if that is not all that the node does.
    """
    steps, more, spec = list[Any](), list[int](), graph.specs[value]
    for member in _members(node):
        others = [v for v in member.inputs if v != value]
        if len(others) != len(member.inputs) - 1 or len(member.outputs) != 1:
            return None
        (value,) = member.outputs
        if graph.specs[value] != spec:
            return None
        steps.append((member.row.name, member.attrs))
        more += others
    whole = steps and node.outputs == (value,) and len(more) == len(node.inputs) - 1
    return (tuple(steps), more) if whole and {*more} <= {*node.inputs} else None


def _members(node: Node) -> Sequence[Node]:
    """Return the element-wise operations that a node is made of, if there is nothing else."""
    work = work_of(node.row)
    if work is not None:
        return work.members
    return () if node.row.element is None else (node,)
