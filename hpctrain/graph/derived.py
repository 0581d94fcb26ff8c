"""What a graph makes of parameters alone, taken out of it: made once, read in many runs.

Between two updates of the parameters a plan may run several times, on one micro-batch after
the other. What comes of parameters alone, such as a weight rounded for a product or the sum of
two biases, is the same in all these runs. `derived` divides a graph into what makes such
values and the rest, which reads them as it reads parameters.

A value larger than what it is made of is not worth its memory: it stays in the rest.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpctrain import backend
from hpctrain.autograd import Spec
from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.plan import sharing

__all__ = ["Derived", "Shelves", "by_first_use", "derived", "nothing_derived"]


@dataclass(frozen=True, slots=True)
class Derived:
    """A graph in two.

    Attributes
    ----------
    once : Graph
        From the leaves to what is derived from them: its outputs.
    rest : Graph
        All else; its last leaves are the outputs of ``once``.
    keys : tuple
        For each output what it is made of: equal for equal values of graphs with the same
        leaves in the same order.
    """

    once: Graph
    rest: Graph
    keys: tuple[Hashable, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that are kept between the runs."""
        return sum(self.once.specs[v].nbytes for v in self.once.outputs)

    def sources(self) -> dict[int, set[int]]:
        """Return for each output of ``once`` the leaves that it is made of."""
        found: dict[int, set[int]] = {v: {v} for v in self.once.leaves}
        for node in self.once.nodes:
            made = set[int]().union(*(found.get(v, ()) for v in node.inputs))
            found.update(dict.fromkeys(node.outputs, made))
        return {v: found[v] for v in self.once.outputs}


def derived(graph: Graph) -> Derived:
    """Divide a graph into what is made of its parameters alone and the rest; a pure pass.

    Leaves of floating dtype that no assignment changes are taken for parameters.

    Parameters
    ----------
    graph : Graph
        In which equal nodes have been merged; else equal values are kept twice.

    Returns
    -------
    Derived
        ``rest`` is ``graph`` itself if there is nothing to take out.
    """
    walk = _Walk(graph)
    needed = set(graph.kept())
    for node in graph.nodes:
        if node.outputs[0] not in walk.keys:
            needed.update(node.inputs)
    # A view costs nothing: the rest looks at what it shows by itself.
    looks: list[Node] = []
    for node in reversed(graph.nodes):
        if walk.is_view(node) and needed.intersection(node.outputs):
            needed.update(node.inputs)
            looks.append(node)
    taken = [n for n in graph.nodes if n.outputs[0] in walk.keys and n not in looks]
    outputs = tuple(v for n in taken for v in n.outputs if v in needed)
    if not outputs:
        return nothing_derived(graph)
    once = replace(
        graph, nodes=_reaching(graph.nodes, outputs, walk.keys), inputs=(), outputs=outputs,
        assigns=(),
    )  # fmt: skip
    left = {v for n in graph.nodes if n.outputs[0] not in walk.keys for v in n.outputs}
    left.update(v for n in looks for v in n.outputs)
    rest = replace(
        graph,
        nodes=tuple(n for n in graph.nodes if n.outputs[0] in left),
        leaves=(*graph.leaves, *outputs),
    )
    return Derived(once, rest, tuple(walk.keys[v] for v in outputs))


def nothing_derived(graph: Graph) -> Derived:
    """Return a graph of which nothing is taken out."""
    return Derived(replace(graph, nodes=(), inputs=(), outputs=(), assigns=()), graph, ())


class _Walk:
    """Finds what is derived: ``keys`` says of each such value what it is made of."""

    def __init__(self, graph: Graph) -> None:
        changed = {leaf for leaf, _ in graph.assigns}
        self.specs, self.ends = graph.specs, set(graph.kept())
        self.views = sharing(graph)[0]
        self.known: dict[int, Hashable] = {
            v: ("constant", str(graph.specs[v]), backend.to_host(a).tobytes())
            for v, a in graph.constants.items()
        }
        self.sizes = dict.fromkeys(self.known, 0)  # bytes of the leaves that a value reads
        self.keys: dict[int, Hashable] = {}
        for place, leaf in enumerate(graph.leaves):
            if leaf not in changed and graph.specs[leaf].dtype.kind == "f":
                self.known[leaf] = ("leaf", place)
                self.sizes[leaf] = graph.specs[leaf].nbytes
        for node in graph.nodes:
            self._look(node)

    def is_view(self, node: Node) -> bool:
        """Return whether a node is derived, and only shows what it reads."""
        return node.outputs[0] in self.keys and node.outputs[0] in self.views

    def _look(self, node: Node) -> None:
        if not node.row.pure or self.ends.intersection(node.outputs):
            return
        if not self.known.keys() >= set(node.inputs):
            return
        read = sum(self.sizes[v] for v in set(node.inputs))
        made = sum(self.specs[v].nbytes for v in node.outputs)
        if node.outputs[0] not in self.views and made > read:
            return
        key = node.row.name, node.attrs, tuple(self.known[v] for v in node.inputs)
        for place, value in enumerate(node.outputs):
            self.keys[value] = self.known[value] = (*key, place)
            self.sizes[value] = read


def _reaching(
    nodes: Sequence[Node], outputs: Iterable[int], among: Collection[int]
) -> tuple[Node, ...]:
    """Return the nodes that ``outputs`` need, of those that make values ``among`` these."""
    needed, found = set(outputs), []
    for node in reversed(nodes):
        if node.outputs[0] in among and needed.intersection(node.outputs):
            needed.update(node.inputs)
            found.append(node)
    return tuple(reversed(found))


def by_first_use(once: Graph, uses: Sequence[Sequence[int]]) -> tuple[Graph, list[int]]:
    """Order the nodes of ``once`` by who needs them first.

    Parameters
    ----------
    once : Graph
    uses : sequence of sequence of int
        What each of several readers reads, in their order.

    Returns
    -------
    graph : Graph
    stops : list of int
        How many of its nodes have run when a reader has what it needs, for each reader.
    """
    first: dict[int, int] = {}
    for place, values in enumerate(uses):
        for value in values:
            first.setdefault(value, place)
    whom: list[int] = []
    for node in reversed(once.nodes):
        place = min(first.get(v, len(uses)) for v in node.outputs)
        whom.append(place)
        for value in node.inputs:
            first[value] = min(first.get(value, place), place)
    pairs = list(zip(reversed(whom), once.nodes, strict=True))
    pairs.sort(key=lambda pair: pair[0])
    stops = [sum(w <= place for w, _ in pairs) for place in range(len(uses))]
    return replace(once, nodes=tuple(node for _, node in pairs)), stops


class Shelves:
    """Arrays of derived values, one for each key, whichever plans read them.

    Parameters
    ----------
    device : Device
    """

    def __init__(self, device: backend.Device) -> None:
        self._device = device
        self._arrays: dict[Hashable, Any] = {}

    def arrays(self, keys: Sequence[Hashable], specs: Sequence[Spec]) -> list[Any]:
        """Return the arrays of these values, the same ones whenever the keys are."""
        for key, spec in zip(keys, specs, strict=True):
            if key not in self._arrays:
                self._arrays[key] = backend.empty(spec.shape, spec.dtype, self._device)
        return [self._arrays[key] for key in keys]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in self._arrays.values())
