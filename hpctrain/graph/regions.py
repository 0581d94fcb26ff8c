"""Regions of a graph that give the same numbers in any order of the axes; see `transposes`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hpctrain.autograd import PRIMITIVES
from hpctrain.graph.identities import TURNED
from hpctrain.graph.ir import Graph, Node

__all__ = ["Axes", "Region", "inverse", "order_of", "regions"]

Axes = tuple[int, ...]


def order_of(node: Node) -> Axes | None:
    """Return the axes of a transpose, None for any other node."""
    return dict(node.attrs)["axes"] if node.row.name == "transpose" else None


def inverse(p: Axes) -> Axes:
    """Return the axes that undo a transpose by ``p``."""
    return tuple(sorted(range(len(p)), key=p.__getitem__))


def _uses(graph: Graph) -> Mapping[int, list[int]]:
    """Return the places that read each value; one behind the last for what must be kept."""
    found: dict[int, list[int]] = {}
    for place, node in enumerate(graph.nodes):
        for value in dict.fromkeys(node.inputs):
            found.setdefault(value, []).append(place)
    for value in graph.kept():
        found.setdefault(value, []).append(len(graph.nodes))
    return found


def _careless(graph: Graph, uses: Mapping[int, list[int]]) -> list[bool]:
    """Return for each place whether the node's results are the same for any strides it reads.

    A view passes the strides on: so it is careless if all that read it are.
    """
    found = [True] * (len(graph.nodes) + 1)  # what is kept at the end gets copied
    for place in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[place]
        row = node.row
        if row.view is not None:
            found[place] = all(found[user] for user in uses.get(node.outputs[0], ()))
        else:
            found[place] = row.any_strides or row.kind in ("elementwise", "movement")
    return found


def _spreads(shape: Axes, over: Axes) -> bool:
    """Return whether an array of ``shape`` can be broadcast to ``over``."""
    if len(shape) > len(over):
        return False
    tail = over[len(over) - len(shape) :]
    return all(n in (1, m) for n, m in zip(shape, tail, strict=True))


@dataclass(frozen=True)
class _Sight:
    """A graph, and what is known of each value and node."""

    graph: Graph
    uses: Mapping[int, list[int]]
    careless: Sequence[bool]
    made_at: Mapping[int, int]

    @classmethod
    def of(cls, graph: Graph) -> "_Sight":
        uses = _uses(graph)
        made_at = {v: i for i, node in enumerate(graph.nodes) for v in node.outputs}
        return cls(graph, uses, _careless(graph, uses), made_at)

    def order(self, place: int) -> Axes | None:
        """Return the axes of the transpose at ``place``, None if there is another node."""
        nodes = self.graph.nodes
        return order_of(nodes[place]) if place < len(nodes) else None

    def whole(self, place: int) -> list[int] | None:
        """Return the inputs that turn with the outputs of a node, None if it cannot be turned.

        The other inputs are broadcast.
        """
        specs, node = self.graph.specs, self.graph.nodes[place]
        shape = specs[node.outputs[0]].shape
        if len(shape) < 2 or PRIMITIVES.get(node.row.name) != node.row:
            return None
        if node.row.name in TURNED:
            plain = tuple(range(len(shape)))
            possible = TURNED[node.row.name](dict(node.attrs), plain) is not None
            return list(node.inputs) if possible and self.careless[place] else None
        if node.row.kind != "elementwise" or any(specs[v].shape != shape for v in node.outputs):
            return None
        if not all(_spreads(specs[v].shape, shape) for v in node.inputs):
            return None
        return [v for v in node.inputs if specs[v].shape == shape] or None


@dataclass
class Region:
    """Nodes that can be turned, connected by the values that turn with them."""

    sight: _Sight
    rank: int
    places: list[int] = field(default_factory=list)

    @property
    def plain(self) -> Axes:
        """The order as it is."""
        return tuple(range(self.rank))

    @cached_property
    def inside(self) -> frozenset[int]:
        """The places, once all are known."""
        return frozenset(self.places)

    def made(self) -> list[int]:
        """Return the values made in the region."""
        return [v for place in self.places for v in self.sight.graph.nodes[place].outputs]

    def read(self) -> list[int]:
        """Return the values that turn and are made outside."""
        own = set(self.made())
        found: dict[int, None] = {}
        for place in self.places:
            found.update(dict.fromkeys(self.sight.whole(place) or ()))
        return [v for v in found if v not in own]

    def natural(self, value: int) -> Axes:
        """Return the order in which a value from outside needs no transpose."""
        place = self.sight.made_at.get(value)
        order = None if place is None else self.sight.order(place)
        return order or self.plain

    def users(self, value: int) -> list[int]:
        """Return the places outside that read ``value``."""
        return [p for p in self.sight.uses.get(value, ()) if p not in self.inside]

    def wanted(self, value: int) -> set[Axes]:
        """Return the orders in which what is outside would like to have ``value``."""
        found = set()
        for place in self.users(value):
            order = self.sight.order(place) if self.sight.careless[place] else None
            found.add(self.plain if order is None else inverse(order))
        return found

    def orders(self) -> set[Axes]:
        """Return the orders worth trying."""
        found = {self.plain, *map(self.natural, self.read())}
        return found.union(*(self.wanted(v) for v in self.made()))

    def cost(self, p: Axes) -> int:
        """Return the bytes that are read or written in another order than they lie in."""
        specs = self.sight.graph.specs
        total = sum(self._size(v) for v in self.read() if self.natural(v) != p)
        for value in self.made():
            total += specs[value].nbytes * len(self.wanted(value) - {p})
        return total

    def _size(self, value: int) -> int:
        """Return the bytes to be moved; what is spread out needs none."""
        graph, made_at = self.sight.graph, self.sight.made_at
        place = made_at.get(value)
        while place is not None and graph.nodes[place].row.name == "broadcast_to":
            value = graph.nodes[place].inputs[0]
            place = made_at.get(value)
        return graph.specs[value].nbytes


def regions(graph: Graph) -> Sequence[Region]:
    """Return the regions of ``graph``."""
    sight = _Sight.of(graph)
    region_of: dict[int, Region] = {}
    for place, node in enumerate(graph.nodes):
        whole = sight.whole(place)
        if whole is None:
            continue
        here = Region(sight, graph.specs[node.outputs[0]].ndim, [place])
        sources = [sight.made_at.get(v, -1) for v in whole]
        before = {id(r): r for source in sources if (r := region_of.get(source))}
        for other in before.values():
            here.places += other.places
        region_of.update(dict.fromkeys(here.places, here))
    found = {id(region): region for region in region_of.values()}
    for region in found.values():
        region.places.sort()
    return list(found.values())
