"""Which gradients have few rows that are not zero, and which input of the graph tells them."""

from hpctrain.graph.plan import Plan

__all__ = ["rows_of_outputs"]


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
        numbers = node.inputs[which]
        while numbers in plan.views:
            numbers = plan.views[numbers]
        if numbers in places:
            found[position] = places[numbers]
    return found
