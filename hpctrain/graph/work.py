"""What a fused operation computes, as data; it does not say how.

``S``: the common shape of everything that is not summed.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.autograd.element import Element, in_order
from hpctrain.backend import module_of
from hpctrain.graph.ir import Node
from hpctrain.graph.layout import contiguous

__all__ = ["Fused", "Input", "Result"]


@dataclass(frozen=True, slots=True)
class Input:
    """A C-contiguous array, and how the loops read it.

    Attributes
    ----------
    value : int
        The value that members read.
    source : int
        The value whose array is read: ``value``, or what it is a view of.
    spec : Spec
        Of the source.
    shape : tuple of int
        Of the value.
    strides : tuple of int
        In elements, one for each axis of ``shape``.
    offset : int
        Of the first element.
    """

    value: int
    source: int
    spec: Spec
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def over(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the strides along the axes of ``shape``, 0 where it is broadcast."""
        lead = len(shape) - len(self.shape)
        own = [0 if n == 1 else s for n, s in zip(self.shape, self.strides, strict=True)]
        return (*[0] * lead, *own)

    def seen(self, array: Any) -> Any:
        """Return the value as a view of the array of the source."""
        if self.value == self.source:
            return array
        strides = [s * array.itemsize for s in self.strides]
        begin = array.reshape(-1)[self.offset :]
        return module_of(array).lib.stride_tricks.as_strided(begin, self.shape, strides)


@dataclass(frozen=True, slots=True)
class Result:
    """A formula of the inputs, and what becomes of it.

    Attributes
    ----------
    value : int
    element : Element
    spec : Spec
    axes : tuple of int or None
        Axes of ``S`` that are summed away; None: nothing is.
    factor : float
        What the sum is multiplied by.
    """

    value: int
    element: Element
    spec: Spec
    axes: tuple[int, ...] | None = None
    factor: float = 1.0

    def over(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the strides along the axes of ``shape``, 0 where it is summed."""
        if self.axes is None:
            return contiguous(shape)
        steps = iter(contiguous(self.kept(shape)))
        return tuple(0 if i in self.axes else next(steps) for i in range(len(shape)))

    def kept(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return ``shape`` without the axes that are summed."""
        return tuple(n for i, n in enumerate(shape) if i not in (self.axes or ()))


@dataclass(frozen=True, slots=True)
class Fused:
    """One fused operation.

    Attributes
    ----------
    shape : tuple of int
        ``S``.
    inputs : tuple of Input
    results : tuple of Result
    members : tuple of Node
        The nodes that it replaces, in order.
    inner : mapping of int to Spec
        Of the values that pass between members and are no results.
    """

    shape: tuple[int, ...]
    inputs: tuple[Input, ...]
    results: tuple[Result, ...]
    members: tuple[Node, ...]
    inner: Mapping[int, Spec]

    @property
    def name(self) -> str:
        """The names of the members, for people."""
        names = [node.row.name for node in self.members]
        more = f"+{len(names) - 4}" if len(names) > 4 else ""
        return "+".join(names[:4]) + more

    def digest(self) -> str:
        """Return a short name of everything that is computed."""
        lines, number = [], {}
        for i, x in enumerate(in_order(r.element for r in self.results)):
            number[id(x)] = i
            lines.append(f"{x.op} {[number[id(a)] for a in x.args]} {x.dtype} {x.value!r}")
        for a in self.inputs:
            lines.append(f"{a.spec} {a.shape} {a.strides} {a.offset}")
        for r in self.results:
            lines.append(f"{number[id(r.element)]} {r.spec} {r.axes} {r.factor!r}")
        return hashlib.sha256("\n".join([str(self.shape), *lines]).encode()).hexdigest()[:12]
