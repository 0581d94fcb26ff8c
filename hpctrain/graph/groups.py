"""Which nodes of a graph are fused with which, and where the groups stand.

The nodes are walked once, in order, and kept in an order in which they can run: each is an
entry of its own or joins *groups* that make its inputs, in one of two ways. Either all meet
at the node's own place: then nothing else between a group and the node may read from the
group. Or all meet at the place of a group: then everything that the node reads must be there
already. So no cycle can arise, and none is searched for.

What is gained is traffic to memory and calls; what may be lost is memory, if an array lives
longer. So where a matrix product or the like stands between, a node or a group moves only if
that keeps no more bytes alive.
"""

import bisect
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hpctrain.graph.instructions import DTYPES
from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.layout import Layout
from hpctrain.graph.marks import GROUP

__all__ = ["Entry", "group"]

_MEMBERS = 48  # nodes of one group: registers are few
_LIGHT = frozenset({"elementwise", "movement", "reduce"})  # kinds that take little time
_TILED = 131072  # elements from which tiles pay: two of them


@dataclass(eq=False, slots=True)
class Entry:
    """A node, or a group of nodes to be fused.

    Attributes
    ----------
    place : int
        Entries run in the order of their places.
    nodes : list of int
        Places of the nodes in the graph, in order.
    shape : tuple of int or None
        The common shape of a group; None: one node that cannot be fused.
    device : hashable
        The group of devices that its nodes are marked with, if any.
    elements, sums : set of int
        Values that it makes, element by element and by summing.
    plain, roots : set of int
        Values whose arrays it reads, as they are and through views.
    """

    place: int
    nodes: list[int]
    shape: tuple[int, ...] | None = None
    device: Hashable = None
    elements: set[int] = field(default_factory=set)
    sums: set[int] = field(default_factory=set)
    plain: set[int] = field(default_factory=set)
    roots: set[int] = field(default_factory=set)

    def absorb(self, other: "Entry") -> None:
        """Take over the nodes of ``other``."""
        self.nodes = sorted({*self.nodes, *other.nodes})
        self.elements |= other.elements
        self.sums |= other.sums
        self.roots |= other.roots
        self.plain = (self.plain | other.plain) - self.elements


def group(graph: Graph, layouts: Mapping[int, Layout], compiled: bool) -> list[Entry]:
    """Return the entries of ``graph`` in an order in which they can run.

    Parameters
    ----------
    graph : Graph
    layouts : mapping of int to Layout
        Of every value.
    compiled : bool
        Whether sums may join, and small arrays are worth it.
    """
    walk = _Walk(graph, layouts, compiled)
    for place in range(len(graph.nodes)):
        walk.take(place)
    return sorted(set(walk.where), key=lambda entry: entry.place)


def _device(node: Node) -> Hashable:
    return dict(node.marks).get(GROUP)


class _Walk:
    def __init__(self, graph: Graph, layouts: Mapping[int, Layout], compiled: bool) -> None:
        self.graph = graph
        self.layouts = layouts
        self.compiled = compiled
        self.where: list[Entry] = []  # node -> entry
        self.maker = {v: i for i, node in enumerate(graph.nodes) for v in node.outputs}
        self.readers: dict[int, list[int]] = {}
        self.last: dict[int, int] = {}
        for i, node in enumerate(graph.nodes):
            for v in node.inputs:
                self.last[v] = self.last[layouts[v].root] = i
        kept = {layouts[v].root for v in graph.kept()}
        self.lasting = {*kept, *graph.inputs, *graph.leaves, *graph.constants}
        self.heavy = [i for i, n in enumerate(graph.nodes) if n.row.kind not in _LIGHT]

    def take(self, place: int) -> None:
        """Place the next node."""
        node = self.graph.nodes[place]
        new = self._entry(place, node)
        joined: Sequence[Entry] = ()
        if new.shape is not None:
            joined, new.place = self._choose(new)
        elif self._total(node):
            joined = self._sum(new, node)
        for entry in joined:
            new.absorb(entry)
        self.where.append(new)
        for i in new.nodes[:-1]:
            self.where[i] = new
        for v in self._reads(new, node):
            self.readers.setdefault(v, []).append(place)

    def _reads(self, entry: Entry, node: Node) -> Iterable[int]:
        """Return what ``node`` reads: its inputs, and what it sees through views."""
        return {*node.inputs, *entry.roots} if entry.shape is not None else node.inputs

    def _entry(self, place: int, node: Node) -> Entry:
        specs = self.graph.specs
        if not self._fusable(node):
            return Entry(place, [place], plain={*node.inputs})
        new = Entry(place, [place], specs[node.outputs[0]].shape, _device(node))
        new.elements = {node.outputs[0]}
        for v in node.inputs:
            layout = self.layouts[v]
            (new.plain if layout.plain else new.roots).add(v if layout.plain else layout.root)
        return new

    def _fusable(self, node: Node) -> bool:
        specs = self.graph.specs
        if node.row.element is None or len(node.outputs) != 1:
            return False
        size = math.prod(specs[node.outputs[0]].shape)
        known = all(specs[v].dtype.name in DTYPES for v in (*node.inputs, *node.outputs))
        known = known and not self._calculates(node)
        return known and (size > 0 if self.compiled else size >= _TILED)

    def _calculates(self, node: Node) -> bool:
        """Return whether the node makes bfloat16 of bfloat16: we only convert them."""
        narrow, specs = "bfloat16", self.graph.specs
        made = specs[node.outputs[0]].dtype.name
        return made == narrow and any(specs[v].dtype.name == narrow for v in node.inputs)

    # Sums

    def _total(self, node: Node) -> bool:
        specs = self.graph.specs
        same = specs[node.inputs[0]].dtype == specs[node.outputs[0]].dtype
        floating = specs[node.outputs[0]].dtype.name in ("float32", "float64")
        return self.compiled and node.row.total is not None and same and floating

    def _sum(self, new: Entry, node: Node) -> Sequence[Entry]:
        """Let a sum join the group whose element it sums: it makes little and reads no more.

        Or one that reads what it sums, as to round it.
        """
        value = node.inputs[0]
        shape, device = self.graph.specs[value].shape, _device(node)
        made = self.maker.get(value)
        near = [self.where[i] for i in self._users(value) if value in self.where[i].plain]
        near = near if made is None else [self.where[made], *near]
        for entry in near:
            fits = shape == entry.shape and device == entry.device
            if fits and value in entry.elements | entry.plain and len(entry.nodes) < _MEMBERS:
                break
        else:
            entry = Entry(new.place, [], shape, device)
            if not self.layouts[value].plain or not self._down(node):
                return ()
        new.shape, new.device, new.place = entry.shape, entry.device, entry.place
        new.plain = {value}
        new.sums = {node.outputs[0]}
        return (entry,) if entry.nodes else ()

    def _down(self, node: Node) -> bool:
        """Return whether a sum adds up rows, for which NumPy has a loop for each."""
        assert node.row.total is not None, "it is a sum"
        axes, _ = node.row.total(self.graph.specs[node.inputs[0]], **dict(node.attrs))
        return bool(axes) and tuple(sorted(axes)) == tuple(range(len(axes)))

    # Element by element

    def _choose(self, new: Entry) -> tuple[Sequence[Entry], int]:
        """Return the groups to join and the place to meet at."""
        makers = {self.where[self.maker[v]] for v in new.plain if v in self.maker}
        near = [e for e in makers if e.shape == new.shape and e.device == new.device]
        near = [e for e in near if new.plain & e.elements]
        near.sort(key=lambda entry: entry.place)
        best: tuple[Sequence[Entry], int] = ((), new.place)
        for place in (*(entry.place for entry in near), new.place):
            joined = self._joined(new, near, place)
            if joined and len(joined) >= len(best[0]) and self._worth(new, joined, place):
                best = joined, place
        return best

    def _joined(self, new: Entry, near: Sequence[Entry], place: int) -> Sequence[Entry]:
        """Return the groups among ``near`` that can meet the new node at ``place``."""
        joined = [entry for entry in near if entry.place <= place]
        while joined:
            stuck = [
                e for e in joined if e.place < place and self._read_between(e, joined, place)
            ]
            if not stuck:
                break
            joined = [e for e in joined if e not in stuck]
        merged = Entry(place, [])
        for entry in (*joined, new):
            merged.absorb(entry)
        if merged.roots & (merged.elements | merged.sums) or merged.plain & merged.sums:
            return ()
        there = all(self._made(v) < place for v in (*merged.plain, *merged.roots))
        return joined if there and len(merged.nodes) <= _MEMBERS else ()

    def _made(self, value: int) -> int:
        """Return the place of whoever makes ``value``."""
        return self.where[self.maker[value]].place if value in self.maker else -1

    def _read_between(self, entry: Entry, joined: Sequence[Entry], place: int) -> bool:
        readers = {self.where[i] for v in entry.elements | entry.sums for i in self._users(v)}
        return any(r.place <= place and r not in (entry, *joined) for r in readers)

    def _users(self, value: int) -> Iterable[int]:
        return self.readers.get(value, ())

    def _worth(self, new: Entry, joined: Sequence[Entry], place: int) -> bool:
        """Return whether meeting at ``place`` keeps no more bytes alive across heavy nodes."""
        now = new.nodes[0]
        if self._crossed(place, now) and not self._frees(new, now):
            return False
        return all(self._movable(e, now) for e in joined if self._crossed(e.place, place))

    def _crossed(self, start: int, stop: int) -> bool:
        return bisect.bisect_right(self.heavy, start) < bisect.bisect_left(self.heavy, stop)

    def _frees(self, new: Entry, now: int) -> bool:
        """Return whether the new node is the last to need as many bytes as it makes."""
        freed = self._bytes(v for v in new.plain | new.roots if self.last[v] == now)
        return freed >= self._bytes(new.elements, of_all=True)

    def _movable(self, entry: Entry, now: int) -> bool:
        """Return whether what a group makes is as much as what it keeps alive when delayed."""
        kept = self._bytes(v for v in entry.plain | entry.roots if self.last[v] < now)
        return not entry.sums and kept <= self._bytes(entry.elements, of_all=True)

    def _bytes(self, values: Iterable[int], of_all: bool = False) -> int:
        return sum(
            self.graph.specs[v].nbytes for v in values if of_all or v not in self.lasting
        )
