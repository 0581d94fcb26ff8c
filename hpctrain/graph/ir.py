"""The graph: plain, immutable data. Values are numbers, nodes apply rows to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hpctrain.autograd import Primitive, Spec
from hpctrain.graph.marks import Marks

__all__ = ["Graph", "Node", "describe_attrs"]


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of a graph.

    Attributes
    ----------
    row : Primitive
    inputs, outputs : tuple of int
        Numbers of values.
    attrs : tuple of (name, value)
        Sorted by name, hashable.
    marks : tuple of (name, value)
        What passes are to know of it; see `hpctrain.graph.marks`.
    """

    row: Primitive
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    marks: Marks = ()

    def mark(self, name: str) -> Any:
        """Return what the node is marked with under ``name``, None if with nothing."""
        return dict(self.marks).get(name)

    def __str__(self) -> str:
        outs = ", ".join(f"%{v}" for v in self.outputs)
        ins = ", ".join(f"%{v}" for v in self.inputs)
        return f"{outs} = {self.row.name}({ins}){describe_attrs(self.attrs)}"


def describe_attrs(attrs: Sequence[tuple[str, Any]]) -> str:
    """Write attributes as ``{name=value, ...}``; empty for none."""
    return " {" + ", ".join(f"{k}={v}" for k, v in attrs) + "}" if attrs else ""


@dataclass(frozen=True, slots=True)
class Graph:
    """A computation, in an order in which it can be run.

    Attributes
    ----------
    nodes : tuple of Node
        Each after those that it reads from.
    specs : mapping of int to Spec
        Shape and dtype of every value.
    inputs : tuple of int
        Values fed at each run.
    leaves : tuple of int
        Parameters and state: arrays that live outside and are bound once.
    constants : mapping of int to array
        Values known at capture.
    outputs : tuple of int
        What a run is for.
    assigns : tuple of (leaf, source)
        State that takes a new value at the end of a run.
    names : mapping of int to str
        Names of inputs and leaves, for people.
    """

    nodes: tuple[Node, ...]
    specs: Mapping[int, Spec]
    inputs: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()
    constants: Mapping[int, Any] = field(default_factory=dict)
    outputs: tuple[int, ...] = ()
    assigns: tuple[tuple[int, int], ...] = ()
    names: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))

    def text(self) -> str:
        """Return the graph as text, one node a line."""
        lines = [f"input %{v}: {self.specs[v]} {self.names.get(v, '')}" for v in self.inputs]
        lines += [f"leaf %{v}: {self.specs[v]} {self.names.get(v, '')}" for v in self.leaves]
        lines += [f"constant %{v}: {self.specs[v]}" for v in self.constants]
        for node in self.nodes:
            shapes = ", ".join(str(self.specs[v]) for v in node.outputs)
            lines.append(f"{node}: {shapes}")
        lines += [f"assign %{leaf} <- %{source}" for leaf, source in self.assigns]
        lines.append("output " + ", ".join(f"%{v}" for v in self.outputs))
        return "\n".join(line.rstrip() for line in lines)

    def kept(self) -> list[int]:
        """Return the values that must exist at the end of a run."""
        return [*self.outputs, *(source for _, source in self.assigns)]
