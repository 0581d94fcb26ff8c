"""The pass that trades time for memory: forward values are computed again when needed.

Of the values that the backward part reads some are *kept*, as always; the others are made
anew, just before they are first read, by copies of the nodes that made them, from kept
values, inputs and leaves. State is assigned once, by the originals; copies see it as it was
before. Random draws come from a stream that is such a state, so a copy draws the same bits.

Which values are kept is decided apart from this: by the marks of blocks here, by bytes in
`hpctrain.graph.budget`.

A *root* is a value with memory of its own: what a view is, at last, a view of.

References
----------
Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost",
arXiv 1604.06174 (2016).
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from hpctrain.autograd import Spec
from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.marks import AGAIN, BACKWARD, REGION
from hpctrain.graph.plan import sharing

__all__ = ["Forward", "recompute", "recompute_regions"]


class Forward:
    """The forward part of a graph, and what the backward part reads of it.

    Parameters
    ----------
    graph : Graph
        Forward nodes, then those of the gradient walk, as they were captured.

    Attributes
    ----------
    stop : int
        Nodes before this place are the forward part.
    maker : dict of int to int
        Places of the nodes that made the values of the forward part.
    saved : frozenset of int
        Roots that must be in memory for the backward part, if nothing is recomputed.
    last : dict of int to int
        Last place of the forward part that reads a root, or a view of it.
    bound_bytes : int
        In use at the busiest step, if nothing is recomputed.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        nodes = graph.nodes
        marked = (place for place, node in enumerate(nodes) if BACKWARD in node.marks)
        self.stop = next(marked, len(nodes))
        self.views, self.bound_bytes = sharing(graph)
        # What lives outside of the arena or must live to the end anyway costs nothing to keep.
        self.free = {*graph.inputs, *graph.leaves, *graph.constants, *graph.kept()}
        self.maker = {v: p for p in range(self.stop) for v in nodes[p].outputs}
        read = {self.root(v) for node in nodes[self.stop :] for v in node.inputs}
        self.saved = frozenset(v for v in read if v in self.maker and v not in self.free)
        self.last = {
            self.root(v): place for place in range(self.stop) for v in nodes[place].inputs
        }

    def root(self, value: int) -> int:
        """Return the value whose memory ``value`` is in."""
        while value in self.views:
            value = self.views[value]
        return value

    def nbytes(self, value: int) -> int:
        """Return the size of a value."""
        return self.graph.specs[value].nbytes

    def missing(
        self, values: Iterable[int], kept: Collection[int], done: Collection[int] = ()
    ) -> list[int]:
        """Return the places of the nodes that must run again to have ``values``, in order.

        ``kept`` are the roots that are there still, ``done`` places that have run again.
        """
        found: set[int] = set()
        open_ = list(values)
        while open_:
            value = open_.pop()
            place = self.maker.get(value)
            if place is None or place in found or place in done:
                continue
            root = self.root(value)
            if root in kept or root in self.free or not self.graph.nodes[place].row.pure:
                continue
            found.add(place)
            open_.extend(self.graph.nodes[place].inputs)
        return sorted(found)


def recompute(forward: Forward, kept: Collection[int]) -> Graph:
    """Compute again, for the backward part, what is not kept.

    Parameters
    ----------
    forward : Forward
    kept : collection of int
        Roots that stay in memory until the backward part has read them. Those that cost
        nothing are kept beside them, and what a node without equal results has made.

    Returns
    -------
    Graph
        The same values, bit for bit, if every node is run by its own kernel. Copies are
        marked `hpctrain.graph.marks.AGAIN`; the original nodes stay, in their order.
    """
    copies = _Copies(forward, kept)
    nodes = list(forward.graph.nodes[: forward.stop])
    for node in forward.graph.nodes[forward.stop :]:
        nodes.extend(copies.before(node))
        nodes.append(copies.renamed(node))
    return replace(forward.graph, nodes=tuple(nodes), specs=copies.specs)


class _Copies:
    """The values made anew so far, while the backward part is walked once."""

    def __init__(self, forward: Forward, kept: Collection[int]) -> None:
        self.forward = forward
        self.kept = kept
        self.specs: dict[int, Spec] = dict(forward.graph.specs)
        self.fresh = max(self.specs, default=-1) + 1
        self.names: dict[int, int] = {}
        self.done: set[int] = set()

    def before(self, node: Node) -> list[Node]:
        """Return the copies that ``node`` needs and that are not there yet."""
        places = self.forward.missing(node.inputs, self.kept, self.done)
        return [self._copy(place) for place in places]

    def _copy(self, place: int) -> Node:
        self.done.add(place)
        node = self.renamed(self.forward.graph.nodes[place])
        outputs = tuple(range(self.fresh, self.fresh + len(node.outputs)))
        self.fresh += len(outputs)
        for old, new in zip(node.outputs, outputs, strict=True):
            self.specs[new] = self.specs[old]
            root = self.forward.root(old)
            if root not in self.kept and root not in self.forward.free:
                self.names[old] = new
        return replace(node, outputs=outputs, marks=(*node.marks, AGAIN))

    def renamed(self, node: Node) -> Node:
        """Return ``node`` reading what was made anew."""
        return replace(node, inputs=tuple(self.names.get(v, v) for v in node.inputs))


def recompute_regions(graph: Graph) -> Graph:
    """Compute again, for the backward part, the values inside of marked regions.

    A region is the nodes with one mark `hpctrain.graph.marks.REGION`; what nodes outside of
    it read is kept, and what no region made.

    Parameters
    ----------
    graph : Graph
        Forward nodes, then those of the gradient walk.

    Returns
    -------
    Graph
        ``graph`` itself if nothing is marked.
    """
    if not any(name == REGION for node in graph.nodes for name, _ in node.marks):
        return graph
    forward = Forward(graph)
    region = [dict(node.marks).get(REGION) for node in graph.nodes[: forward.stop]]
    kept = {v for v in forward.saved if region[forward.maker[v]] is None}
    for place in range(forward.stop):
        for value in graph.nodes[place].inputs:
            root = forward.root(value)
            maker = forward.maker.get(root)
            if maker is not None and region[maker] != region[place]:
                kept.add(root)
    return recompute(forward, kept)
