"""The pass that takes operations apart where their parts fuse better with what is around."""

from dataclasses import replace

from hpctrain.graph.capture import capture
from hpctrain.graph.ir import Graph, Node

__all__ = ["expand"]


def expand(graph: Graph) -> Graph:
    """Put the parts of an operation in its place, where its row says what they are.

    Returns
    -------
    Graph
        The same values within rounding.
    """
    specs, nodes, constants = dict(graph.specs), list[Node](), dict(graph.constants)
    fresh = max(specs, default=-1) + 1
    for node in graph.nodes:
        if node.row.parts is None:
            nodes.append(node)
            continue
        inner = _parts(graph, node)
        number = dict(zip(inner.inputs, node.inputs, strict=True))
        number.update(zip(inner.outputs, node.outputs, strict=True))
        for value, spec in inner.specs.items():
            if value not in number:
                number[value], specs[fresh] = fresh, spec
                fresh += 1
        constants.update((number[v], array) for v, array in inner.constants.items())
        for part in inner.nodes:
            ins, outs = (tuple(number[v] for v in vs) for vs in (part.inputs, part.outputs))
            nodes.append(replace(part, inputs=ins, outputs=outs, marks=node.marks))
    return replace(graph, nodes=tuple(nodes), specs=specs, constants=constants)


def _parts(graph: Graph, node: Node) -> Graph:
    parts, attrs = node.row.parts, dict(node.attrs)
    assert parts is not None
    return capture(lambda *ins: parts(ins, **attrs), [graph.specs[v] for v in node.inputs])
