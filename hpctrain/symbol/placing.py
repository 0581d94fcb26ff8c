"""Where the nodes of a symbol are to run: by their ``ctx_group``, or with what they read.

As in MXNet's ``group2ctx`` a node without a group goes with its inputs, a parameter without
one with whoever reads it first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpctrain.errors import ConfigError
from hpctrain.symbol.node import Entry, Node, in_order

__all__ = ["PLACE", "groups_of", "place_of", "placed"]

PLACE = "__ctx_group__"


def groups_of(heads: Sequence[Entry]) -> list[str]:
    """Return the groups that nodes are in, in the order in which a run comes to them."""
    found = (node.texts.get(PLACE) for node in in_order(heads))
    return list(dict.fromkeys(group for group in found if group is not None))


def placed(heads: Sequence[Entry], places: Mapping[str, int], rest: int = 0) -> list[Entry]:
    """Return the heads of a copy in which every node and variable has a place.

    Parameters
    ----------
    heads : sequence of (Node, int)
    places : mapping of str to int
        By group; a group that is not there counts as none.
    rest : int
        Of what is connected with no group.

    Returns
    -------
    list of (Node, int)
        See `place_of`. State is where the operator is that uses it.

    Raises
    ------
    ConfigError
        If operators of different places use one state.
    """
    nodes = in_order(heads)
    found = {id(node): _own(node, places) for node in nodes}
    for node in nodes:
        if found[id(node)] is None and node.operator is not None:
            above = (found[id(below)] for below, _ in node.inputs)
            found[id(node)] = next((place for place in above if place is not None), None)
    _go_with_readers(nodes, found)
    _go_with_users(nodes, found)
    made: dict[int, Node] = {}
    for node in nodes:
        place = found[id(node)]
        texts = {**node.texts, PLACE: str(rest if place is None else place)}
        inputs = tuple((made[id(below)], output) for below, output in node.inputs)
        made[id(node)] = replace(node, texts=texts, inputs=inputs)
    return [(made[id(node)], output) for node, output in heads]


def _own(node: Node, places: Mapping[str, int]) -> int | None:
    group = node.texts.get(PLACE)
    return None if group is None else places.get(group)


def _go_with_readers(nodes: Sequence[Node], found: dict[int, int | None]) -> None:
    """Let what has no place yet be where it is read first."""
    free = {ident for ident, place in found.items() if place is None}
    for node in reversed(nodes):  # late readers before early ones, and these have the last word
        for below, _ in node.inputs:
            if id(below) in free and found[id(node)] is not None:
                found[id(below)] = found[id(node)]


def _go_with_users(nodes: Sequence[Node], found: dict[int, int | None]) -> None:
    """Let state be where it is used, and nowhere else."""
    users: dict[int, Node] = {}
    for node in nodes:
        for below, _ in node.state:
            first = users.setdefault(id(below), node)
            if found[id(first)] != found[id(node)]:
                raise ConfigError(
                    f"group2ctx: got the state {below.name!r} of {first.name!r} and "
                    f"{node.name!r}, which run on different ranks, needed one; give both "
                    "one ctx_group"
                )
            found[id(below)] = found[id(node)]


def place_of(node: Node) -> int:
    """Return the place of a node of what `placed` has returned."""
    return int(node.texts[PLACE])
