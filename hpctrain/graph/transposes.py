"""The pass ``layout``: transpose where it costs least.

Kernels that slide windows or normalise work with channels on the last axis. A model in
another layout transposes before and after each of them, so between them elementwise
operations read and write in an order that nobody wants. This pass looks at each *region*:
operations that give the same numbers in any order of the axes, as far as they reach. It turns
a whole region to the order for which the fewest bytes have to be moved at its edges; there,
transposes meet their inverses and both go.

An order of axes is written as ``p``: a value ``v`` of the region becomes ``w`` with
``v = transpose(w, p)``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpctrain.autograd import Spec, primitive
from hpctrain.graph.clean import dead_code, simplify
from hpctrain.graph.identities import TURNED
from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.regions import Axes, Region, inverse, order_of, regions

__all__ = ["layout", "transposed_bytes"]


def layout(graph: Graph) -> Graph:
    """Turn regions of layout-indifferent operations to the order of axes that costs least.

    Returns
    -------
    Graph
        The same bits: elements are computed as before, in another order.
    """
    turned: dict[int, tuple[Region, Axes]] = {}
    for region in regions(graph):
        plain, cost = region.plain, region.cost
        best = min(region.orders(), key=lambda p: (cost(p), p != plain, p))
        if best != plain:
            turned.update((place, (region, best)) for place in region.places)
    if not turned:
        return graph
    return dead_code(simplify(_Turner(graph, turned).turn()))


def transposed_bytes(graph: Graph) -> int:
    """Return the bytes of all results of transposes that change the order of elements."""
    return sum(
        graph.specs[node.outputs[0]].nbytes
        for node in graph.nodes
        if list(order_of(node) or ()) != sorted(order_of(node) or ())
    )


class _Turner:
    """Writes the graph anew, with some regions turned."""

    def __init__(self, graph: Graph, turned: Mapping[int, tuple[Region, Axes]]) -> None:
        self.graph = graph
        self.turned = turned
        self.specs: dict[int, Spec] = dict(graph.specs)
        self.nodes: list[Node] = []
        self.known: dict[tuple[int, Axes], int] = {}  # a value in another order of axes
        self.seen: dict[int, int] = {}  # a turned value as a view in its old order
        self.next = max(self.specs, default=-1) + 1

    def turn(self) -> Graph:
        careless = next(iter(self.turned.values()))[0].sight.careless
        for place, node in enumerate(self.graph.nodes):
            if place in self.turned:
                self._turn(node, place)
            elif careless[place]:
                inputs = tuple(self.seen.get(v, v) for v in node.inputs)
                self.nodes.append(replace(node, inputs=inputs))
            else:
                self.nodes.append(node)
        return replace(self.graph, nodes=tuple(self.nodes), specs=self.specs)

    def _turn(self, node: Node, place: int) -> None:
        region, p = self.turned[place]
        whole = region.sight.whole(place) or []
        inputs = tuple(
            self._in_order(node, v, p) if v in whole else self._broadcast(node, v, p)
            for v in node.inputs
        )
        attrs = node.attrs
        if node.row.name in TURNED:
            attrs = tuple(sorted((TURNED[node.row.name](dict(attrs), p) or {}).items()))
        outputs = []
        for value in node.outputs:
            shape = self.specs[value].shape
            outputs.append(self._new(value, [shape[a] for a in inverse(p)]))
            self.known[value, p] = outputs[-1]
        self.nodes.append(replace(node, inputs=inputs, outputs=tuple(outputs), attrs=attrs))
        for value in node.outputs:
            self._give_back(node, value, region, p)

    def _give_back(self, near: Node, value: int, region: Region, p: Axes) -> None:
        """Make ``value`` in its old order, as far as it is read outside of its region."""
        users = region.users(value)
        if not users:
            return
        view = value
        if not all(region.sight.careless[place] for place in users):
            view = self._new(value, self.specs[value].shape)
        self._apply(near, "transpose", self.known[value, p], view, axes=p)
        self.seen[value] = view
        if view != value:
            self._apply(near, "identity", view, value)

    def _new(self, like: int, shape: Sequence[int]) -> int:
        self.next += 1
        self.specs[self.next - 1] = self.specs[like].with_shape(shape)
        return self.next - 1

    def _apply(self, near: Node, name: str, source: int, result: int, **attrs: Any) -> int:
        """Add a movement of ``source``, placed like the node that it serves."""
        row = primitive(name)
        self.nodes.append(
            replace(
                near, row=row, inputs=(source,), outputs=(result,), attrs=tuple(attrs.items())
            )
        )
        return result

    def _in_order(self, near: Node, value: int, p: Axes) -> int:
        """Return ``value`` in order ``p``."""
        if (value, p) not in self.known:
            back = inverse(p)
            result = self._new(value, [self.specs[value].shape[a] for a in back])
            source = self.seen.get(value, value)
            self.known[value, p] = self._apply(near, "transpose", source, result, axes=back)
        return self.known[value, p]

    def _broadcast(self, near: Node, value: int, p: Axes) -> int:
        """Return a value that is broadcast, so that it fits values in order ``p``."""
        spec = self.specs[value]
        if spec.size == 1 and spec.ndim <= len(p):
            return value
        shape = (1,) * (len(p) - spec.ndim) + spec.shape
        if shape != spec.shape:
            longer = self.known.get((value, ()))
            if longer is None:
                longer = self._new(value, shape)
                self.known[value, ()] = self._apply(near, "reshape", value, longer, shape=shape)
            value = longer
        return self._in_order(near, value, p)
