"""Gradients of weights that are made when the factors of all virtual shards are there.

Of a few samples the gradient of a dense layer is a large matrix, written, read and added to the
sums for every shard: most of a shard's time beside the convolutions of LeNet. Here the node
of that product only keeps its factors, and all products are made and added at once
(`hpctrain.graph.thin`): the same sums, in the same precision. Which products, follows from
their shapes alone, so the bits are still those of any number of ranks.
"""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec
from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.thin import ThinProducts
from hpctrain.parallel.flat import FlatParameters, Slice

__all__ = ["Later", "slots_of"]

_SLOTS = (4, 16)  # fewer do not pay, more gain nothing
_TERMS = 64  # of a product; with more its own kernel is faster


def slots_of(terms: int, rows: int, columns: int) -> int:
    """Return how many pairs of factors to keep of products of a shape; 0: make each at once.

    They take half of the memory of one product, at most.
    """
    slots = min(_SLOTS[1], rows * columns // (2 * terms * (rows + columns)))
    return slots if slots >= _SLOTS[0] and terms <= _TERMS else 0


class Later:
    """The kept factors of a model's gradients.

    Parameters
    ----------
    flat : FlatParameters
    sums : array, shape (total,), float64
        Where products are added.

    Notes
    -----
    Used on the compute lane alone, by tasks that declare the slices of the gradient.
    """

    def __init__(self, flat: FlatParameters, sums: Any) -> None:
        self._flat, self._sums = flat, sums
        self._kept: dict[int, dict[int, ThinProducts]] = {}  # by place, then by terms
        self._over: set[int] = set()  # places that are added up: their factors are of no use

    def adopt(self, graph: Graph) -> tuple[Graph, frozenset[int]]:
        """Let the gradients of a step keep their factors where that is faster.

        Parameters
        ----------
        graph : Graph
            Its last outputs are the gradients, in the order of the parameters.

        Returns
        -------
        graph : Graph
            The same values, but for those gradients, which it does not write.
        places : frozenset of int
            The numbers of their parameters.
        """
        first = len(graph.outputs) - len(self._flat.sizes)
        place_of = {value: place for place, value in enumerate(graph.outputs[first:])}
        read = {v for node in graph.nodes for v in node.inputs}
        nodes, places = list(graph.nodes), set()
        for at, node in enumerate(nodes):
            place = place_of.get(node.outputs[0])
            shape = _thin(graph, node)
            if place is None or shape is None or node.outputs[0] in read:
                continue
            nodes[at] = replace(node, row=_keeping(partial(self._keep, place, shape)), attrs=())
            places.add(place)
        return replace(graph, nodes=tuple(nodes)), frozenset(places)

    def _keep(self, place: int, shape: tuple[int, int, int], left: Any, right: Any) -> None:
        """Keep the factors of a parameter's gradient, or first add those that fill the room."""
        kept = self._kept.setdefault(place, {})
        if place in self._over:
            self._over.remove(place)
            for products in kept.values():
                products.count = 0
        if shape[0] not in kept:
            kept[shape[0]] = ThinProducts(*shape, slots_of(*shape))
        products = kept[shape[0]]
        if products.count == products.slots:
            at, size = self._flat.offsets[place], self._flat.sizes[place]
            products.add(self._sums[at : at + size], (0, size))
            products.count = 0
        products.keep(left, right)

    def add(self, piece: Slice) -> None:
        """Add what was kept of a slice; no more follows in this step."""
        for place in piece.parameters:
            start, stop = self._flat.span(piece, place)
            at = self._flat.offsets[place]
            for _, products in sorted(self._kept.get(place, {}).items()):
                if products.count:
                    products.add(self._sums[start:stop], (start - at, stop - at))
                    self._over.add(place)

    def runs(self, piece: Slice, places: Collection[int]) -> list[tuple[int, int, bool]]:
        """Cut a slice into runs (start, stop, whether its gradient is kept) by ``places``."""
        found, end = [], piece.start
        for place in piece.parameters:
            if place in places:
                start, stop = self._flat.span(piece, place)
                found += [(end, start, False), (start, stop, True)]
                end = stop
        return [(a, b, kept) for a, b, kept in (*found, (end, piece.stop, False)) if a < b]


def _thin(graph: Graph, node: Node) -> tuple[int, int, int] | None:
    """Return (terms, rows, columns) of a product whose factors had better be kept."""
    attrs = dict(node.attrs)
    if node.row.name != "matmul" or not attrs["transpose_a"] or attrs["transpose_b"]:
        return None
    left, right = (graph.specs[v] for v in node.inputs)
    if left.ndim != 2 or right.ndim != 2 or {left.dtype, right.dtype} != {np.dtype("f4")}:
        return None
    shape = left.shape[0], left.shape[1], right.shape[1]
    return shape if slots_of(*shape) else None


def _keeping(keep: Any) -> Primitive:
    """Make the row of a node that hands its two inputs to ``keep``."""

    def infer(specs: Any, **_: Any) -> list[Spec]:
        return [specs[0].with_shape((specs[0].shape[1], specs[1].shape[1]))]

    def kernel(xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
        keep(*ins)

    def bind(xp: Any, ins: Any, outs: Any, scratch: Any) -> partial[None]:
        return partial(keep, *ins)

    return Primitive("keep_factors", "contract", infer, kernel, bind=bind)
