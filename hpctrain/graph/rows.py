"""Which arrays are about few rows, and which input of the graph tells them."""

from hpctrain.graph.plan import Plan

__all__ = ["rows_of_outputs", "rows_read"]


def rows_of_outputs(plan: Plan) -> dict[int, int]:
    """Find outputs that are zero but for rows whose numbers are an input of the graph.

    Parameters
    ----------
    plan : Plan

    Returns
    -------
    dict of int to int
        For the position of such an output, the position of the input that holds the numbers.
        Numbers that are computed in the graph do not count: their memory is used again.
    """
    graph = plan.graph
    made = {node.outputs[0]: node for node in graph.nodes}
    places = {value: place for place, value in enumerate(graph.inputs)}
    found = {}
    for position, value in enumerate(graph.outputs):
        node = made.get(value)
        if node is None or node.row.rows is None:
            continue
        which = node.row.rows(**dict(node.attrs))
        if which is None:
            continue
        numbers = _whole(plan, node.inputs[which])
        if numbers in places:
            found[position] = places[numbers]
    return found


def rows_read(plan: Plan, leaf: int) -> set[int]:
    """Find which inputs of the graph tell the rows of a leaf that a run reads.

    Parameters
    ----------
    plan : Plan
    leaf : int
        The number of its value.

    Returns
    -------
    set of int
        Positions of the inputs; -1 among them if a run may read other rows too.
    """
    graph = plan.graph
    places = {value: place for place, value in enumerate(graph.inputs)}
    found = {-1} if leaf in graph.kept() else set()
    for node in graph.nodes:
        if leaf not in node.inputs:
            continue
        which = node.row.looks_up and node.row.looks_up(**dict(node.attrs))
        table, *others = node.inputs
        if which is None or table != leaf or leaf in others:
            found.add(-1)
        else:
            found.add(places.get(_whole(plan, node.inputs[which]), -1))
    return found


def _whole(plan: Plan, value: int) -> int:
    """Return what a value is a view of, itself if of none."""
    while value in plan.views:
        value = plan.views[value]
    return value
