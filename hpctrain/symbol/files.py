"""Symbols as JSON: in the layout of MXNet 1.x, and read in those of all releases before.

A file comes from others, so it is data to be checked: nodes may only refer to nodes before
them, attributes are text, and an operator that is not in the table is refused by name.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpctrain.errors import DataError
from hpctrain.ops.mxnet import ALIASES, OPERATORS
from hpctrain.ops.mxnet_row import Operator, parse_attrs
from hpctrain.symbol import legacy
from hpctrain.symbol.node import Entry, Node, in_order

__all__ = ["from_json", "read", "to_json"]

OUTPUTS = 2**16  # of one node
VERSION = 10901  # the release of MXNet whose layout this is: 1.9.1


def to_json(heads: Sequence[Entry]) -> str:
    """Return the symbol as JSON text that MXNet 1.x loads too."""
    nodes = in_order(heads)
    numbers = {id(node): number for number, node in enumerate(nodes)}
    rows = []
    for node in nodes:
        row: dict[str, Any] = {
            "op": node.operator.name if node.operator else "null",
            "name": node.name,
        }
        if node.texts:
            row["attrs"] = dict(sorted(node.texts.items()))
        state = len(node.inputs) - len(node.state)
        row["inputs"] = [
            [numbers[id(below)], place, int(position >= state)]
            for position, (below, place) in enumerate(node.inputs)
        ]
        rows.append(row)
    whole = {
        "nodes": rows,
        "arg_nodes": [n for n, node in enumerate(nodes) if node.operator is None],
        "heads": [[numbers[id(node)], place, 0] for node, place in heads],
        "attrs": {"mxnet_version": ["int", VERSION]},
    }
    return json.dumps(whole, indent=2)


def read(path: str | Path) -> list[Entry]:
    """Return the heads of the symbol in a file; see `from_json`."""
    try:
        text = Path(path).read_text("utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: is no symbol of MXNet 1.x, since it is no text") from None
    return from_json(text, str(path))


def from_json(text: str, where: str = "symbol") -> list[Entry]:
    """Return the heads of the symbol that ``text`` describes.

    Parameters
    ----------
    text : str
    where : str
        For messages.

    Raises
    ------
    DataError
        If the text is not a symbol, or has operators that are not known here.
    ConfigError
        If an operator's attribute is unknown, missing, or not of its form.
    """
    try:
        whole = json.loads(text)
        release = legacy.release_of(whole)
        rows = [_Row(row) for row in whole["nodes"]]
        heads = [_entry(head) for head in whole["heads"]]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{where}: is no symbol of MXNet 1.x: {type(error).__name__} {error}"
        ) from None
    _refuse_unknown(where, rows)
    nodes: list[Node] = []
    for row in rows:
        _check(where, row.inputs, nodes, f"node {row.name!r}")
        inputs = [(nodes[n], place) for n, place in row.inputs]
        nodes.append(_node(where, row, inputs, release))
    _check(where, heads, nodes, "heads")
    _refuse_twins(where, nodes)
    return [(nodes[n], place) for n, place in heads]


class _Row:
    """One entry of the list of nodes, with everything of its type."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.op, self.name = row["op"], row["name"]
        self.texts = legacy.texts_of(row, self.operator)
        self.inputs = [_entry(entry) for entry in row["inputs"]]
        if not all(isinstance(t, str) for t in (self.op, self.name, *self.texts.values())):
            raise TypeError(f"names and attributes of node {self.name!r} are not all text")
        "".join((self.name, *self.texts, *self.texts.values())).encode("utf-8")

    @property
    def operator(self) -> Operator | None:
        return OPERATORS.get(ALIASES.get(self.op, self.op))


def _entry(value: Sequence[Any]) -> tuple[int, int]:
    number, place = value[0], value[1]
    if type(number) is not int or type(place) is not int or number < 0 or place < 0:
        raise TypeError(f"got {value!r} for an input, needed [node, output, version]")
    return number, place


def _refuse_unknown(where: str, rows: Iterable[_Row]) -> None:
    unknown = [row for row in rows if row.op != "null" and row.operator is None]
    if unknown:
        names = ", ".join(sorted({row.op for row in unknown}))
        raise DataError(
            f"{where}: node {unknown[0].name!r} is the operator {unknown[0].op}, which is not "
            f"known here; missing in all: {names}"
        )


def _check(where: str, entries: Any, nodes: Sequence[Node], what: str) -> None:
    for number, place in entries:
        if number >= len(nodes) or place >= nodes[number].outputs:
            raise DataError(
                f"{where}: {what} refers to output {place} of node {number}, needed a node "
                "before it"
            )


def _refuse_twins(where: str, nodes: Sequence[Node]) -> None:
    found: set[str] = set()
    for node in nodes:
        if node.operator is None:
            if node.name in found:
                raise DataError(f"{where}: two variables have the name {node.name!r}")
            found.add(node.name)


def _node(where: str, row: _Row, inputs: list[Entry], release: int) -> Node:
    operator = row.operator
    if operator is None:
        return Node(None, row.name, legacy.divide(row.texts, ())[0])
    slots = [*operator.inputs, *operator.aux]
    texts, of_inputs = legacy.divide(legacy.settings(operator, row.texts, release), slots)
    attrs = parse_attrs(f"{where}: node {row.name!r}", operator, texts)
    _check_counts(where, row, operator, attrs)
    names = [*operator.input_names(attrs), *operator.aux]
    legacy.missing(operator, row.name, names, inputs, texts, release)
    if len(inputs) != len(names):
        raise DataError(
            f"{where}: node {row.name!r} has {len(inputs)} inputs, needed {', '.join(names)}"
        )
    for name, (below, _) in zip(names, inputs, strict=True):
        if below.operator is None:
            below.texts.update(of_inputs.get(name, {}))
    return Node(operator, row.name, texts, tuple(inputs), attrs)


def _check_counts(where: str, row: _Row, operator: Operator, attrs: Mapping[str, Any]) -> None:
    """Refuse numbers of inputs and outputs before lists of that length are made."""
    if operator.count and attrs[operator.count] != len(row.inputs):
        raise DataError(
            f"{where}: node {row.name!r} has {len(row.inputs)} inputs, needed "
            f"{attrs[operator.count]}, its {operator.count}"
        )
    if not 0 < operator.outputs(attrs) <= OUTPUTS:
        raise DataError(
            f"{where}: node {row.name!r} has {operator.outputs(attrs)} outputs, needed 1 to "
            f"{OUTPUTS}"
        )
