"""Where the elements of a value lie, as far as a graph alone says: views of other values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.graph.ir import Graph, Node

__all__ = ["Layout", "contiguous", "layouts"]


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a C-contiguous array, in elements."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Layout:
    """Elements of the array of ``root``, from ``offset``, by ``strides`` (in elements)."""

    root: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def plain(self) -> bool:
        """Whether the elements lie one behind the other."""
        wanted = contiguous(self.shape)
        return all(
            n == 1 or a == b for n, a, b in zip(self.shape, self.strides, wanted, strict=True)
        )


def layouts(graph: Graph) -> Mapping[int, Layout]:
    """Return the layout of every value of ``graph``."""
    made = {v for node in graph.nodes for v in node.outputs}
    found = {
        v: Layout(v, spec.shape, contiguous(spec.shape))
        for v, spec in graph.specs.items()
        if v not in made
    }
    for node in graph.nodes:
        for v in node.outputs:
            shape = graph.specs[v].shape
            found[v] = _seen(graph, node, found) or Layout(v, shape, contiguous(shape))
    return found


def _seen(graph: Graph, node: Node, found: Mapping[int, Layout]) -> Layout | None:
    """Return the layout of a node's result if it is a view."""
    if node.row.view is None or node.outputs[0] in graph.outputs:
        return None
    before, spec = found[node.inputs[0]], graph.specs[node.inputs[0]]
    dummy = _dummy(spec, before.strides)
    view = node.row.view(dummy, **dict(node.attrs))
    if view is None:
        return None
    moved = view.__array_interface__["data"][0] - dummy.__array_interface__["data"][0]
    size = spec.dtype.itemsize
    strides = tuple(s // size for s in view.strides)
    return Layout(before.root, view.shape, strides, before.offset + moved // size)


def _dummy(spec: Spec, strides: tuple[int, ...]) -> Any:
    """Return an array with the right shape and strides whose elements must not be touched."""
    steps = [s * spec.dtype.itemsize for s in strides]
    return np.lib.stride_tricks.as_strided(np.empty(1, spec.dtype), spec.shape, steps)
