"""The pass that fuses: neighbouring element-wise operations and sums become one node.

What other kernels do element by element in loops of their own is compiled, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpctrain.autograd.element import Element, cast, in_order, source
from hpctrain.graph.fused import fused_row
from hpctrain.graph.groups import Entry, group
from hpctrain.graph.inner import with_loops
from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.layout import Layout, contiguous, layouts
from hpctrain.graph.work import Fused, Input, Result

__all__ = ["fuse"]

_SOURCES = ("input", "constant")
# For these, and for bfloat16, NumPy has no vector code, or not for all.
_SLOW = frozenset({"erf", "expm1", "log1p", "maximum"})


def fuse(graph: Graph, compiled: bool = True) -> Graph:
    """Fuse element-wise operations and the sums of what they make.

    Parameters
    ----------
    graph : Graph
        Its outputs have nodes of their own (pass ``own_outputs``).
    compiled : bool
        Whether kernels will be compiled; then a single operation that NumPy needs several
        passes for is compiled, too. If not, the members' own kernels run over tiles: only
        groups of two or more operations on large arrays arise, without sums.

    Returns
    -------
    Graph
        The same values within rounding: plain arithmetic gives the same bits, functions and
        sums do not.
    """
    graph = _without_idle_views(graph)
    where = layouts(graph)
    entries = group(graph, where, compiled)
    formulas = [_formulas(graph, e) if e.shape is not None else {} for e in entries]
    fused = [_pays(e, f, compiled) for e, f in zip(entries, formulas, strict=True)]
    needed = set(graph.kept())
    nodes: list[Node] = []
    for entry, formula, worth in reversed(list(zip(entries, formulas, fused, strict=True))):
        if worth:
            node = _node(graph, entry, formula, where, needed, compiled)
            if not node.outputs:
                continue
        else:
            node = graph.nodes[entry.nodes[0]]
            node = with_loops(node) if compiled else node
            if not needed.intersection(node.outputs):
                continue  # a view that all its readers see through
        nodes.append(node)
        needed.update(node.inputs)
    return replace(graph, nodes=tuple(reversed(nodes)))


def _without_idle_views(graph: Graph) -> Graph:
    """Drop views that show an array as it is: same shape, same strides."""
    where = layouts(graph)
    same: dict[int, int] = {}
    nodes = []
    for node in graph.nodes:
        value, first = node.outputs[0], node.inputs[0] if node.inputs else -1
        view = node.row.view is not None and value not in graph.outputs
        if view and where[value] == where[first] and graph.specs[value] == graph.specs[first]:
            same[value] = same.get(first, first)
            continue
        nodes.append(replace(node, inputs=tuple(same.get(v, v) for v in node.inputs)))
    assigns = tuple((leaf, same.get(v, v)) for leaf, v in graph.assigns)
    return replace(graph, nodes=tuple(nodes), assigns=assigns)


def _formulas(graph: Graph, entry: Entry) -> dict[int, Element]:
    """Return the formula of each value of a group; its inputs are called by their numbers."""
    known: dict[int, Element] = {}
    for place in entry.nodes:
        node = graph.nodes[place]
        args = [known.get(v) or source(v, graph.specs[v].dtype.name) for v in node.inputs]
        value = node.outputs[0]
        if value in entry.sums:
            known[value] = args[0]
        else:
            assert node.row.element is not None
            made = node.row.element(*args, **dict(node.attrs))
            known[value] = cast(made, graph.specs[value].dtype.name)
    return known


def _pays(entry: Entry, formulas: Mapping[int, Element], compiled: bool) -> bool:
    """Return whether to fuse: two nodes or more, or one for which NumPy takes several steps."""
    if len(entry.nodes) > 1:
        return True
    found = in_order(formulas.values())
    steps = [x.op for x in found if x.op not in _SOURCES]
    slow = bool(_SLOW.intersection(steps)) or any(x.dtype == "bfloat16" for x in found)
    return compiled and (len(steps) > 1 or slow or bool(entry.sums))


def _node(
    graph: Graph,
    entry: Entry,
    formulas: Mapping[int, Element],
    where: Mapping[int, Layout],
    needed: set[int],
    compiled: bool,
) -> Node:
    """Make the node that replaces a group; it gives what is needed of what the group makes."""
    members = tuple(graph.nodes[i] for i in entry.nodes)
    made = [v for node in members for v in node.outputs]
    values = [v for v in made if v in needed]
    if compiled:
        leaves = in_order(formulas[v] for v in values)
        read = [int(x.value) for x in leaves if x.op == "input"]
    else:
        read = [v for node in members for v in node.inputs if v not in made]
    inputs = tuple(_input(graph, where, v) for v in dict.fromkeys(read))
    renamed = _renamed(
        [formulas[v] for v in values], {a.value: i for i, a in enumerate(inputs)}
    )
    results = tuple(_result(graph, members, v, x) for v, x in zip(values, renamed, strict=True))
    inner = {v: graph.specs[v] for v in made if v not in needed}
    work = Fused(entry.shape or (), inputs, results, members, inner)
    return Node(
        row=fused_row(work, compiled),
        inputs=tuple(a.source for a in inputs),
        outputs=tuple(values),
        attrs=(("formula", work.digest()),),
        marks=tuple(m for m in members[0].marks if all(m in node.marks for node in members)),
    )


def _input(graph: Graph, where: Mapping[int, Layout], value: int) -> Input:
    layout, spec = where[value], graph.specs[value]
    if layout.plain:
        return Input(value, value, spec, spec.shape, contiguous(spec.shape))
    source_spec = graph.specs[layout.root]
    return Input(value, layout.root, source_spec, spec.shape, layout.strides, layout.offset)


def _result(graph: Graph, members: Sequence[Node], value: int, formula: Element) -> Result:
    (node,) = (node for node in members if value in node.outputs)
    spec = graph.specs[value]
    if node.row.total is None:
        return Result(value, formula, spec)
    axes, factor = node.row.total(graph.specs[node.inputs[0]], **dict(node.attrs))
    return Result(value, formula, spec, tuple(axes), factor)


def _renamed(formulas: Sequence[Element], numbers: Mapping[int, int]) -> list[Element]:
    """Call inputs by their positions."""
    done: dict[int, Element] = {}
    for x in in_order(formulas):
        args = tuple(done[id(a)] for a in x.args)
        value = numbers[int(x.value)] if x.op == "input" else x.value
        done[id(x)] = replace(x, args=args, value=value)
    return [done[id(x)] for x in formulas]
