"""The nodes of a symbol: variables, and operators applied to other nodes' outputs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpctrain.errors import ConfigError
from hpctrain.ops.mxnet_row import Operator, parse_attrs
from hpctrain.symbol.names import attributes, fresh_name

__all__ = ["Entry", "Node", "apply_operator", "auxiliary", "in_order", "variable"]


@dataclass(eq=False, slots=True)
class Node:
    """A variable (``operator`` None), or an operator applied to outputs of nodes.

    Attributes
    ----------
    operator : Operator or None
    name : str
    texts : dict of str to str
        Attributes as they stand in a file; names with two underscores are the user's.
    inputs : tuple of (Node, int)
        Which output of which node, inputs first, then state.
    attrs : dict
        The operator's attributes, read.
    """

    operator: Operator | None
    name: str
    texts: dict[str, str] = field(default_factory=dict)
    inputs: tuple["Entry", ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def outputs(self) -> int:
        """How many outputs there are."""
        return 1 if self.operator is None else self.operator.outputs(self.attrs)

    @property
    def state(self) -> tuple["Entry", ...]:
        """The inputs that are state."""
        count = len(self.operator.aux) if self.operator else 0
        return self.inputs[len(self.inputs) - count :]

    def output_names(self) -> list[str]:
        """Return the names of its outputs as MXNet lists them."""
        if self.operator is None:
            return [self.name]
        if self.outputs == 1:
            return [f"{self.name}_output"]
        if self.operator.results:
            return [f"{self.name}_{which}" for which in self.operator.results[: self.outputs]]
        return [f"{self.name}_output{i}" for i in range(self.outputs)]


Entry = tuple[Node, int]


def variable(name: str, texts: Mapping[str, str] | None = None) -> Node:
    """Make a variable with the attributes of the open scope."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"variable: got the name {name!r}, needed text")
    return Node(None, name, {**attributes(), **(texts or {})})


def apply_operator(
    operator: Operator,
    inputs: Sequence[Entry | None],
    texts: Mapping[str, str],
    name: str | None = None,
    hint: str = "",
) -> Node:
    """Make a node; inputs that are None, and state, become variables named after it.

    Parameters
    ----------
    operator : Operator
    inputs : sequence of (Node, int) or None
        By the operator's input names, as far as they are given.
    texts : mapping of str to str
    name : str, optional
        ``hint`` and a number if None.
    hint : str
    """
    name = fresh_name(name, hint or operator.name.lower())
    texts = {**attributes(), **texts}
    attrs = parse_attrs(name, operator, texts)
    names = [*operator.input_names(attrs), *operator.aux]
    if len(inputs) > len(names):
        raise ConfigError(
            f"{name}: got {len(inputs)} inputs for the operator {operator.name}, needed "
            f"{', '.join(names) or 'none'}"
        )
    given = [*inputs, *[None] * (len(names) - len(inputs))]
    user = {k: v for k, v in texts.items() if k.startswith("__") and k.endswith("__")}
    made = tuple(
        (variable(f"{name}_{wanted}", {**_first(operator, wanted), **user}), 0)
        if entry is None
        else entry
        for entry, wanted in zip(given, names, strict=True)
    )
    return Node(operator, name, dict(texts), made, attrs)


def _first(operator: Operator, wanted: str) -> dict[str, str]:
    return {"__init__": operator.inits[wanted]} if wanted in operator.inits else {}


def in_order(heads: Iterable[Entry]) -> list[Node]:
    """Return all nodes that ``heads`` depend on, each after its inputs, as MXNet orders them.

    Without recursion, since networks may be deeper than Python's stack.
    """
    seen: set[int] = set()
    found: list[Node] = []
    for head, _ in heads:
        stack = [(head, 0)]
        while stack:
            node, place = stack.pop()
            if place == 0 and id(node) in seen:
                continue
            seen.add(id(node))
            if place < len(node.inputs):
                stack.append((node, place + 1))
                below = node.inputs[place][0]
                if id(below) not in seen:
                    stack.append((below, 0))
            else:
                found.append(node)
    return found


def auxiliary(nodes: Iterable[Node]) -> set[int]:
    """Return the ``id`` of each variable that holds state."""
    return {id(entry[0]) for node in nodes for entry in node.state}
