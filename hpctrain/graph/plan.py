"""From a graph to a plan: which value lives in which storage, at which offset of the arena.

A plan is immutable and holds no arrays; `hpctrain.graph.execute` binds it and runs it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.memory import Lifetime, lower_bound, place

__all__ = ["Plan", "make_plan", "sharing"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a graph is run.

    Attributes
    ----------
    graph : Graph
        Its nodes are the steps, in this order.
    views : mapping of int to int
        A value that shares the memory of another, and which (the value it is a view of).
    offsets : mapping of int to int
        Bytes from the start of the arena, for values that live there.
    scratch : mapping of int to tuple of (Spec, offset)
        Temporary arrays of a step.
    arena_bytes, naive_bytes, bound_bytes : int
        Size of the arena; size without sharing; size of the largest set that is in use at
        one step.
    """

    graph: Graph
    views: Mapping[int, int]
    offsets: Mapping[int, int]
    scratch: Mapping[int, tuple[tuple[Spec, int], ...]]
    arena_bytes: int
    naive_bytes: int
    bound_bytes: int

    def text(self) -> str:
        """Return the plan as text: steps with the offsets of what they write."""
        lines = [
            f"arena {self.arena_bytes} bytes, without sharing {self.naive_bytes}, "
            f"at least {self.bound_bytes}"
        ]
        for step, node in enumerate(self.graph.nodes):
            lines.append(f"{step:4d}  {node}  " + " ".join(map(self._where, node.outputs)))
        return "\n".join(lines)

    def _where(self, value: int) -> str:
        if value in self.views:
            return f"view of %{self.views[value]}"
        return f"@{self.offsets[value]}" if value in self.offsets else "outside"


class _Storages:
    """Assigns values to storages while walking the steps once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.last = _last_uses(graph)
        self.dense = _read_densely(graph)
        self.outside = {*graph.inputs, *graph.leaves, *graph.constants, *graph.outputs}
        self.strides = {v: _contiguous(graph.specs[v]) for v in self.outside}
        self.strides.update((v, array.strides) for v, array in graph.constants.items())
        self.views: dict[int, int] = {}
        self.root: dict[int, int] = {v: v for v in self.outside}
        self.home: dict[int, int] = {}  # root value -> storage
        self.members: list[list[int]] = []  # storage -> values in it, views too
        self.sizes: list[int] = []
        self.spans: list[list[int]] = []
        self.scratch: dict[int, list[tuple[Spec, int]]] = {}
        self.naive = 0

    def walk(self) -> None:
        for step, node in enumerate(self.graph.nodes):
            if self._as_view(node):
                continue
            for place_, value in enumerate(node.outputs):
                self.strides[value] = _contiguous(self.graph.specs[value])
                if value in self.outside:
                    continue
                self.root[value] = value
                self.naive += self.graph.specs[value].nbytes
                donor = self._donor(step, node, place_)
                storage = (
                    donor if donor >= 0 else self._new(self.graph.specs[value].nbytes, step)
                )
                self.home[value] = storage
                self.members[storage].append(value)
            self._add_scratch(step, node)
        self._close()

    def _as_view(self, node: Node) -> bool:
        """Take the node's output as a view of its input if the strides allow it."""
        if node.row.view is None or node.outputs[0] in self.outside:
            return False
        source, value = node.inputs[0], node.outputs[0]
        dummy = _dummy(self.graph.specs[source], self.strides[source])
        seen = node.row.view(dummy, **dict(node.attrs))
        if seen is None or (value in self.dense and not seen.flags.c_contiguous):
            return False
        self.views[value] = source
        self.root[value] = self.root[source]
        self.strides[value] = seen.strides
        self.naive += self.graph.specs[value].nbytes
        if self.root[value] in self.home:
            self.members[self.home[self.root[value]]].append(value)
        return True

    def _new(self, nbytes: int, step: int) -> int:
        self.sizes.append(nbytes)
        self.spans.append([step, step])
        self.members.append([])
        return len(self.sizes) - 1

    def _donor(self, step: int, node: Node, place_: int) -> int:
        """Return the storage of an input that this output may be written over, or -1."""
        specs, value = self.graph.specs, node.outputs[place_]
        for source_place, output_place in node.row.inplace:
            source = node.inputs[source_place]
            storage = self.home.get(self.root[source], -1)
            if (
                output_place == place_
                and storage >= 0
                and specs[source] == specs[value]
                and self.strides[source] == _contiguous(specs[source])
                and self.sizes[storage] == specs[value].nbytes
                and not self._needed(storage, step)
                and self._apart(node, source)
                and storage not in {self.home.get(v) for v in node.outputs[:place_]}
            ):
                return storage
        return -1

    def _needed(self, storage: int, step: int) -> bool:
        """Return whether any value in ``storage`` is read after ``step``."""
        return any(self.last.get(v, -1) > step for v in self.members[storage])

    def _apart(self, node: Node, source: int) -> bool:
        """Return whether the other inputs are the same value or lie in other storages."""
        mine = self.home[self.root[source]]
        return all(v == source or self.home.get(self.root[v]) != mine for v in node.inputs)

    def _add_scratch(self, step: int, node: Node) -> None:
        if node.row.scratch is None:
            return
        wanted = node.row.scratch(
            [self.graph.specs[v] for v in node.inputs], **dict(node.attrs)
        )
        for spec in wanted:
            self.scratch.setdefault(step, []).append((spec, self._new(spec.nbytes, step)))
            self.naive += spec.nbytes

    def _close(self) -> None:
        for span, values in zip(self.spans, self.members, strict=True):
            span[1] = max([span[1], *(self.last.get(v, 0) for v in values)])

    def lifetimes(self) -> list[Lifetime]:
        """Return the lifetime of each storage, after `walk`."""
        return [Lifetime(n, *span) for n, span in zip(self.sizes, self.spans, strict=True)]


def _last_uses(graph: Graph) -> dict[int, int]:
    last = {v: step for step, node in enumerate(graph.nodes) for v in node.inputs}
    last.update((source, len(graph.nodes)) for _, source in graph.assigns)
    return last


def _read_densely(graph: Graph) -> set[int]:
    """Return the values that a kernel would copy if they were views of other strides."""
    found = set[int]()
    for node in graph.nodes:
        specs = [graph.specs[v] for v in node.inputs]
        if node.row.dense is not None and node.row.dense(specs, **dict(node.attrs)):
            found.update(node.inputs)
    return found


def _contiguous(spec: Spec) -> tuple[int, ...]:
    strides, step = [], spec.dtype.itemsize
    for length in reversed(spec.shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def _dummy(spec: Spec, strides: tuple[int, ...]) -> Any:
    """Return an array with the right shape and strides whose elements must not be touched."""
    return np.lib.stride_tricks.as_strided(np.empty(1, spec.dtype), spec.shape, strides)


def sharing(graph: Graph) -> tuple[Mapping[int, int], int]:
    """Return which values are views, and of what; and the bytes in use at the busiest step.

    Both are those of the plan that `make_plan` would make, without the search for offsets.
    """
    storages = _Storages(graph)
    storages.walk()
    return storages.views, lower_bound(storages.lifetimes())


def make_plan(graph: Graph) -> Plan:
    """Plan the memory of ``graph``.

    Parameters
    ----------
    graph : Graph
        Optimised; its outputs have nodes of their own (pass ``own_outputs``).

    Returns
    -------
    Plan
        Inputs, leaves, constants and outputs live outside the arena.
    """
    storages = _Storages(graph)
    storages.walk()
    lives = storages.lifetimes()
    layout = place(lives)
    return Plan(
        graph=graph,
        views=storages.views,
        offsets={v: layout.offsets[storages.home[v]] for v in storages.home},
        scratch={
            step: tuple((spec, layout.offsets[i]) for spec, i in wanted)
            for step, wanted in storages.scratch.items()
        },
        arena_bytes=layout.nbytes,
        naive_bytes=storages.naive,
        bound_bytes=lower_bound(lives),
    )
