"""Steps of a plan that are carried out in strips, so that parts of a result are there sooner.

The gradient of a large weight is one product; its first rows can be on their way while the
others are computed. A strip is some rows of the one output of a node.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from hpctrain.graph.plan import Plan

__all__ = ["Strip", "strips_of"]


class Strip(NamedTuple):
    """A step of a plan, or rows of its output.

    Attributes
    ----------
    node : int
        Place of the node in the graph.
    rows : (start, stop) or None
        None for the whole node.
    """

    node: int
    rows: tuple[int, int] | None = None


def strips_of(plan: Plan, cuts: Mapping[int, Sequence[int]]) -> list[Strip]:
    """Return the steps of a plan, some of them in strips.

    Parameters
    ----------
    plan : Plan
    cuts : mapping of value to sequence of int
        Rows before which outputs of the graph are to be cut, ascending. Where that cannot be,
        because the kernel does not know strips or reads an array that changes with each run,
        the step stays whole.
    """
    graph, found = plan.graph, []
    for place, node in enumerate(graph.nodes):
        rows = cuts.get(node.outputs[0], ()) if _divisible(plan, place) else ()
        if rows:
            height = graph.specs[node.outputs[0]].shape[0]
            edges = [0, *rows, height]
            found += [Strip(place, span) for span in pairwise(edges) if span[0] < span[1]]
        else:
            found.append(Strip(place))
    return found


def _divisible(plan: Plan, place: int) -> bool:
    graph, node = plan.graph, plan.graph.nodes[place]
    if node.row.part is None or len(node.outputs) > 1 or node.outputs[0] in plan.views:
        return False
    specs = [graph.specs[v] for v in (*node.inputs, *node.outputs)]
    return all(spec.ndim == 2 for spec in specs) and not any(
        _root(plan, v) in graph.inputs for v in node.inputs
    )


def _root(plan: Plan, value: int) -> int:
    while value in plan.views:
        value = plan.views[value]
    return value
