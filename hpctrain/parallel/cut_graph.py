"""A captured graph in pipeline stages: by the user's groups, or balanced.

Nodes inside of ``AttrScope(ctx_group="stage1")``, or under the mark
`hpctrain.graph.marks.GROUP` in any other way, are on the stage of their group; groups are
stages in the order in which the graph comes to them. A node without a group is where the last
of what it reads is made, or else, if it reads nothing made, where it is first needed.

State stays on one stage: from the first node that reads it to the one that makes its new
value nothing is cut.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from hpctrain.errors import ConfigError
from hpctrain.graph.cuts import node_seconds
from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.marks import GROUP
from hpctrain.parallel.cutting import cut
from hpctrain.parallel.stages import Cut, Layer, Network, cut_at

__all__ = ["cut_graph", "cut_where", "network_of", "stage_graph"]


def network_of(graph: Graph, seconds: Sequence[float] = ()) -> Network:
    """Return the nodes of a graph as layers, and its leaves as parameters.

    Parameters
    ----------
    graph : Graph
        A forward part.
    seconds : sequence of float, optional
        Time of each node; if not given, estimates of which only the ratio is meant.

    Notes
    -----
    A node keeps its outputs, but for views.
    """
    times = seconds or [node_seconds(graph, node) for node in graph.nodes]
    made = _makers(graph)
    leaves = set(graph.leaves)
    layers = tuple(
        Layer(
            name=f"{node.row.name} %{node.outputs[0]}",
            inputs=tuple(v for v in node.inputs if v in made),
            outputs=node.outputs,
            parameters=tuple(v for v in node.inputs if v in leaves),
            time_s=time_s,
            memory_bytes=_kept_bytes(graph, node),
        )
        for node, time_s in zip(graph.nodes, times, strict=True)
    )
    return Network(layers, {v: spec.nbytes for v, spec in graph.specs.items()})


def cut_graph(  # noqa: PLR0913 (what a cut depends on)
    graph: Graph,
    stages: int = 0,
    balance: str = "time",
    seconds: Sequence[float] = (),
    kept: Sequence[int] = (),
    together: Iterable[Collection[int]] = (),
    copies: int = 2,
) -> tuple[Graph, Cut]:
    """Cut a graph into stages.

    Parameters
    ----------
    graph : Graph
        A forward part.
    stages : int
        0 for as many as there are groups.
    balance : {"time", "memory", "params"}
        What decides if no node has a group; see `hpctrain.parallel.cutting.cut`.
    seconds : sequence of float, optional
        Time of each node, as measured.
    kept : sequence of int, optional
        Micro-batches that each stage keeps at once.
    together : iterable of collections of int
        Leaves that must be on one stage, if no node has a group.
    copies : int
        Arrays as large as the parameters; see `hpctrain.parallel.cutting.cut`.

    Returns
    -------
    (Graph, Cut)
        The graph with its nodes in the order of the stages, and where it is cut.

    Raises
    ------
    ConfigError
        If groups and ``stages`` differ in number, an edge goes from a later group to an
        earlier one, or state is on more than one stage.
    """
    groups = list(dict.fromkeys(g for node in graph.nodes if (g := _group(node)) is not None))
    if not groups:
        whole = network_of(graph, seconds)
        spans = _uncut(graph, together)
        merged = Network(tuple(_merged(whole.layers[a:b]) for a, b in spans), whole.nbytes)
        found = cut(merged, stages or 1, balance, kept, copies)
        starts = [spans[place][0] for place in found.bounds[:-1]]
        return graph, cut_at(whole, [*starts, len(graph.nodes)])
    if stages not in (0, len(groups)):
        names = ", ".join(map(str, groups))
        raise ConfigError(
            f"cut: got {stages} stages for {len(groups)} groups ({names}), needed as many"
        )
    return _by_groups(graph, groups, seconds)


def cut_where(
    graph: Graph, homes: Mapping[int, Sequence[int]], stages: int
) -> tuple[Graph, Cut]:
    """Cut a graph where its leaves are: each node on the first stage that can compute it.

    Parameters
    ----------
    graph : Graph
        Such as the inference mode of a model whose training is cut.
    homes : mapping of int to sequence of int
        The stages that have a leaf, ascending.
    stages : int
        Some of them may be left without nodes; what is sent goes through them.

    Returns
    -------
    (Graph, Cut)
        The graph with its nodes in the order of the stages, and where it is cut.

    Raises
    ------
    ConfigError
        If a node reads what only an earlier stage has.
    """
    made, found = _makers(graph), list[int | None]()
    for node in graph.nodes:
        before = [s for v in node.inputs if v in made and (s := found[made[v]]) is not None]
        stage = max(before, default=None)
        for value in node.inputs:
            if value not in homes:
                continue
            later = [home for home in homes[value] if home >= (stage or 0)]
            if not later:
                raise ConfigError(
                    f"cut: {node} reads {graph.names.get(value, value)} of stage "
                    f"{homes[value][-1]} behind stage {stage}, needed it there or later"
                )
            stage = later[0]
        found.append(stage)
    place = _where_needed(graph, found)
    order = sorted(range(len(place)), key=place.__getitem__)
    ordered = replace(graph, nodes=tuple(graph.nodes[p] for p in order))
    bounds = [sum(stage < limit for stage in place) for limit in range(stages + 1)]
    return ordered, cut_at(network_of(ordered), bounds, empty=True)


def stage_graph(graph: Graph, cut: Cut, number: int) -> Graph:
    """Return the part of a graph that one stage computes.

    Parameters
    ----------
    graph : Graph
    cut : Cut
        Both as `cut_graph` gives them.
    number : int
        Of the stage.

    Returns
    -------
    Graph
        Inputs: what the stage before sends, then those of ``graph`` that are fed here.
        Outputs: what is sent to the next stage, then those of ``graph`` that are made here;
        what nothing makes is given out by the last stage.
    """
    stage, last = cut.stages[number], number == len(cut.stages) - 1
    nodes = graph.nodes[stage.start : stage.stop]
    here, made = {v for node in nodes for v in node.outputs}, _makers(graph)
    read = {v for node in nodes for v in node.inputs}
    outputs = tuple(v for v in graph.outputs if v in here or (last and v not in made))
    assigns = tuple(a for a in graph.assigns if a[1] in here or (last and a[1] not in made))
    used = {*read, *outputs, *(v for pair in assigns for v in pair)}
    enters = cut.stages[number - 1].sends if number else ()
    return replace(
        graph,
        nodes=nodes,
        inputs=(*(v for v in enters if isinstance(v, int)), *_those(graph.inputs, used)),
        leaves=_those(graph.leaves, used),
        constants={v: array for v, array in graph.constants.items() if v in used},
        outputs=(*(v for v in stage.sends if isinstance(v, int)), *outputs),
        assigns=assigns,
    )


def _by_groups(
    graph: Graph, groups: Sequence[Hashable], seconds: Sequence[float]
) -> tuple[Graph, Cut]:
    """Bring the nodes into the order of their groups, and cut between these."""
    place = _places(graph, groups)
    order = sorted(range(len(place)), key=place.__getitem__)  # stable: still a legal order
    ordered = replace(graph, nodes=tuple(graph.nodes[p] for p in order))
    bounds = [sum(stage < limit for stage in place) for limit in range(len(groups) + 1)]
    for start, stop in _uncut(ordered):
        inside = [bound for bound in bounds if start < bound < stop]
        if inside:
            first, second = ordered.nodes[inside[0] - 1], ordered.nodes[inside[0]]
            raise ConfigError(
                f"cut: state is read and changed on both sides of {first} | {second}; keep all "
                "that use it in one group"
            )
    network = network_of(ordered, [seconds[p] for p in order] if seconds else ())
    return ordered, cut_at(network, bounds)


def _places(graph: Graph, groups: Sequence[Hashable]) -> list[int]:
    """Return the stage of each node; raises `ConfigError` if an edge goes back."""
    number = {group: stage for stage, group in enumerate(groups)}
    made = _makers(graph)
    found: list[int | None] = []
    for node in graph.nodes:
        before = [s for v in node.inputs if v in made and (s := found[made[v]]) is not None]
        least, group = max(before, default=None), _group(node)
        if group is not None and least is not None and least > number[group]:
            raise ConfigError(
                f"cut: {node} of group {group!r} reads what group {groups[least]!r} makes, "
                f"needed edges from earlier groups to later ones; the graph comes to "
                f"{', '.join(map(str, groups))} in this order"
            )
        found.append(least if group is None else number[group])
    return _where_needed(graph, found)


def _where_needed(graph: Graph, found: Sequence[int | None]) -> list[int]:
    """Put nodes that have no stage, since they read nothing made, on that of their users."""
    made, first = _makers(graph), dict[int, int]()  # first stage that needs what a node makes
    places = [0] * len(found)
    for place in reversed(range(len(found))):
        stage = found[place]
        places[place] = first.get(place, 0) if stage is None else stage
        for value in graph.nodes[place].inputs:
            if value in made:
                maker = made[value]
                first[maker] = min(places[place], first.get(maker, places[place]))
    return places


def _uncut(graph: Graph, together: Iterable[Collection[int]] = ()) -> list[tuple[int, int]]:
    """Return all nodes in runs that are not to be cut, since they use one piece of state."""
    made, inner = _makers(graph), set[int]()  # places that no stage may begin at
    for leaf, source in graph.assigns:
        used = [place for place, node in enumerate(graph.nodes) if leaf in node.inputs]
        used += [made[source]] if source in made else []
        inner.update(range(min(used, default=0) + 1, max(used, default=0) + 1))
    for leaves in together:
        used = [p for p, node in enumerate(graph.nodes) if set(leaves) & set(node.inputs)]
        inner.update(range(min(used, default=0) + 1, max(used, default=0) + 1))
    starts = [place for place in range(len(graph.nodes)) if place not in inner]
    return list(pairwise([*starts, len(graph.nodes)]))


def _merged(layers: Sequence[Layer]) -> Layer:
    """Return several layers as one."""
    outputs = tuple(v for layer in layers for v in layer.outputs)
    inputs = dict.fromkeys(v for layer in layers for v in layer.inputs)
    return Layer(
        layers[0].name,
        tuple(v for v in inputs if v not in set(outputs)),
        outputs,
        tuple(dict.fromkeys(p for layer in layers for p in layer.parameters)),
        sum(layer.time_s for layer in layers),
        sum(layer.memory_bytes for layer in layers),
    )


def _makers(graph: Graph) -> dict[int, int]:
    return {v: place for place, node in enumerate(graph.nodes) for v in node.outputs}


def _kept_bytes(graph: Graph, node: Node) -> int:
    if node.row.view is not None:
        return 0
    return sum(graph.specs[v].nbytes for v in node.outputs)


def _group(node: Node) -> Hashable:
    group: Hashable = node.mark(GROUP)
    return group


def _those(values: Iterable[int], used: set[int]) -> tuple[int, ...]:
    return tuple(v for v in values if v in used)
