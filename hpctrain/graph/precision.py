"""The pass that lets products take their factors in bfloat16.

It runs on what was captured, gradients included, so that the products of the backward part
are covered by the same rule. A value is rounded once, however many products read it; the
rounding is a node like any other, and the pass ``fuse`` makes it part of the kernel that gives
the value. Where nothing but the sign of a value matters, as in the gradient of ``relu``, the
rounded one is read. Everything else stays as it is: results of products, statistics, losses,
gradients of parameters and the parameters themselves are float32.
"""

from collections.abc import Sequence
from dataclasses import replace

from hpctrain.autograd import primitive
from hpctrain.autograd.narrow import NARROW, narrowed
from hpctrain.graph.ir import Graph, Node

__all__ = ["narrow"]


def narrow(graph: Graph) -> Graph:
    """Round the factors of products to bfloat16 where there is a kernel for that.

    Returns
    -------
    Graph
        The same shapes and dtypes; values differ as the factors do, by up to 2**-9 of each.
    """
    walk = _Walk(graph)
    for node in graph.nodes:
        walk.take(node)
    return replace(graph, nodes=tuple(walk.nodes), specs=walk.specs)


class _Walk:
    def __init__(self, graph: Graph) -> None:
        self.specs = dict(graph.specs)
        self.nodes: list[Node] = []
        self.maker = {v: node for node in graph.nodes for v in node.outputs}
        self.rounded: dict[int, int] = {}
        self.fresh = max(self.specs, default=-1) + 1

    def take(self, node: Node) -> None:
        """Add a node, and before it what rounds its factors."""
        which: Sequence[int] = ()
        if node.row.narrow is not None:
            specs = [self.specs[v] for v in node.inputs]
            which = node.row.narrow(specs, **dict(node.attrs))
        inputs = [self.round(v) if i in which else v for i, v in enumerate(node.inputs)]
        for i in node.row.signs:
            inputs[i] = self.widen(inputs[i])
        self.nodes.append(replace(node, inputs=tuple(inputs)))

    def widen(self, value: int) -> int:
        """Return ``value`` as it is after rounding, if it is rounded before, in float32.

        So the value itself need not be kept, and what reads it has half the bytes to read: the
        cast becomes part of the reader.
        """
        if value not in self.rounded:
            return value
        attrs = (("dtype", self.specs[value].dtype.name),)
        given = Node(primitive("cast"), (self.rounded[value],), (self.fresh,), attrs,
                     self.maker[value].marks if value in self.maker else ())  # fmt: skip
        self.specs[self.fresh] = self.specs[value]
        self.nodes.append(given)
        self.fresh += 1
        return self.fresh - 1

    def round(self, value: int) -> int:
        """Return ``value`` rounded; a view of all elements is a view of the source, rounded."""
        if value not in self.rounded:
            maker = self.maker.get(value)
            if maker is not None and maker.row.view is not None and self._whole(maker):
                self._add(value, replace(maker, inputs=(self.round(maker.inputs[0]),)))
            else:
                marks = () if maker is None else maker.marks
                attrs = (("dtype", NARROW),)
                self._add(value, Node(primitive("cast"), (value,), (value,), attrs, marks))
        return self.rounded[value]

    def _add(self, value: int, node: Node) -> None:
        spec = narrowed(self.specs[value])
        assert spec is not None, "only float32 is rounded"
        self.rounded[value], self.specs[self.fresh] = self.fresh, spec
        self.nodes.append(replace(node, outputs=(self.fresh,)))
        self.fresh += 1

    def _whole(self, view: Node) -> bool:
        return self.specs[view.inputs[0]].size == self.specs[view.outputs[0]].size
