"""A graph of outputs and gradients, cut into a forward and a backward part."""

from collections.abc import Sequence
from dataclasses import replace

from hpctrain.graph.ir import Graph
from hpctrain.graph.passes import optimise

__all__ = ["split"]


def split(joint: Graph, count: int, cotangents: int) -> tuple[Graph, Graph, list[int]]:
    """Split a graph in two.

    Parameters
    ----------
    joint : Graph
        Its last ``cotangents`` inputs are for the backward part alone.
    count : int
        The first ``count`` outputs are of the forward part, the others of the backward part.
    cotangents : int

    Returns
    -------
    front : Graph
        From the inputs without cotangents to the first outputs; not optimised, so that
        outputs can be added to it.
    back : Graph
        From what passes between them, then the cotangents, to the other outputs; optimised.
    saved : list of int
        The values that pass between them: inputs of ``front``, or values made in it.
    """
    inputs = joint.inputs[: len(joint.inputs) - cotangents]
    needed = {*joint.outputs[:count], *(source for _, source in joint.assigns)}
    reads = set(joint.outputs[count:])
    ahead, behind, again = [], [], _from_leaves(joint)
    for node in reversed(joint.nodes):
        early = bool(needed.intersection(node.outputs))
        if early:
            needed.update(node.inputs)
            ahead.append(node)
        # A view costs nothing: what it shows passes, and both parts look at it. What is made
        # of a parameter alone would be kept once for each batch under way.
        both = node.row.view is not None or node.outputs[0] in again
        if not early or (both and reads.intersection(node.outputs)):
            reads.update(node.inputs)
            behind.append(node)
    made = {*inputs, *(v for n in ahead for v in n.outputs)}
    made.update(leaf for leaf, _ in joint.assigns)  # the backward part must see it as it was
    read = [*(v for n in reversed(behind) for v in n.inputs), *joint.outputs[count:]]
    made.difference_update(v for n in behind for v in n.outputs)
    saved = list(dict.fromkeys(v for v in read if v in made))
    front = replace(
        joint, nodes=tuple(reversed(ahead)), inputs=inputs, outputs=joint.outputs[:count]
    )
    back = replace(
        joint,
        nodes=tuple(reversed(behind)),
        inputs=(*saved, *joint.inputs[len(inputs) :]),
        outputs=joint.outputs[count:],
        assigns=(),
    )
    return front, optimise(_without_saved_leaves(back, saved)), saved


def _from_leaves(graph: Graph) -> set[int]:
    """Return what is made element by element of leaves that stay as they are, and its views."""
    found = set(graph.leaves) - {leaf for leaf, _ in graph.assigns}
    for node in graph.nodes:
        cheap = node.row.view is not None or node.row.kind == "elementwise"
        if cheap and node.row.pure and found.issuperset(node.inputs):
            found.update(node.outputs)
    return found


def _without_saved_leaves(graph: Graph, saved: Sequence[int]) -> Graph:
    """Give state that is handed over a leaf of its own, so that each value is defined once."""
    specs = dict(graph.specs)
    leaves = list(graph.leaves)
    for place, leaf in enumerate(leaves):
        if leaf in saved:
            leaves[place] = max(specs) + 1
            specs[leaves[place]] = specs[leaf]
    return replace(graph, specs=specs, leaves=tuple(leaves))
