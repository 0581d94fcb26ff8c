"""The primitive table: one row for each operation, for eager execution and for graphs alike.

A row says what comes out (shape and dtype rule), how it is computed (a kernel that writes
into given outputs), and how it is differentiated (a gradient rule written in primitives).
Nothing else in the project knows how an operation works.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from hpctrain.errors import ShapeError

__all__ = ["KINDS", "PRIMITIVES", "Primitive", "Spec", "primitive", "register"]

# What a pass may know of an operation; passes never look at names.
KINDS = frozenset(
    {
        "elementwise",  # each output element from the elements at its place (broadcast)
        "movement",  # the same elements, moved
        "reduce",  # axes summed, averaged, maximised away
        "contract",  # products summed over shared axes
        "window",  # convolution and pooling
        "normalize",  # statistics over axes, then elementwise
        "gather",  # elements chosen by integer arrays
        "random",  # draws from a stream that is an input
        "recurrent",  # a loop over time inside one kernel
        "call",  # a whole graph
    }
)


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of an array, without its elements."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, array: Any) -> "Spec":
        """Return the spec of ``array``."""
        return cls(tuple(array.shape), np.dtype(array.dtype))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes of a C-contiguous array of this spec."""
        return self.size * self.dtype.itemsize

    def with_shape(self, shape: Sequence[int]) -> "Spec":
        """Return a spec of the same dtype and another shape."""
        return Spec(tuple(int(n) for n in shape), self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Primitive:
    """One operation.

    Attributes
    ----------
    name : str
        The key in the table.
    kind : str
        One of `KINDS`: all that a graph pass knows of the operation.
    infer : callable ``(specs, **attrs) -> sequence of Spec``
        Shape and dtype rule; raises `ShapeError`.
    kernel : callable ``(xp, ins, outs, scratch, **attrs) -> None``
        Computes. ``xp`` is the array module, ``ins`` arrays of any strides that must not be
        changed, ``outs`` C-contiguous arrays with undefined content, ``scratch`` likewise.
        Outputs never overlap inputs but for the pairs in ``inplace``.
    vjp : callable ``(inputs, outputs, cotangents, **attrs) -> sequence`` or None
        Gradient rule: takes and returns tensors, one result for each input, None where there
        is no gradient. An entry may be a function of no arguments: it is called only if that
        gradient is wanted. A cotangent is None where an output was not used.
        None: the operation cannot be differentiated.
    view : callable ``(x, **attrs) -> array or None`` or None
        For movement: the result as a view of the (only) input, or None where the strides do
        not allow it. Must not read elements.
    scratch : callable ``(specs, **attrs) -> sequence of Spec`` or None
        Temporary arrays that the kernel needs.
    inplace : tuple of (input, output) pairs
        Which output may be written over which input, when nobody else needs that input.
    pure : bool
        Equal inputs give equal outputs, so that common sub-expressions may be merged.
    any_strides : bool
        The bits of the results do not depend on the strides of the inputs; for elementwise
        and movement that is so without saying.
    element : callable ``(*elements, **attrs) -> Element`` or None
        For elementwise, the formula of one element (`hpctrain.autograd.element`), so that
        several operations may become one loop.
    total : callable ``(spec, **attrs) -> (axes, factor)`` or None
        For sums, the axes that are summed and the number that the sum is multiplied by.
    bind : callable ``(xp, ins, outs, scratch, **attrs) -> callable or None`` or None
        The kernel made ready for arrays that stay: what it returns, called without
        arguments, computes. None where this kind of array has no such shortcut.
    rows : callable ``(**attrs) -> int or None`` or None
        Which input holds the numbers of the rows (along axis 0) of the first output that may
        differ from zero; None if any may.
    looks_up : callable ``(**attrs) -> int or None`` or None
        Which input holds the numbers of the rows (along axis 0) of the first input that are
        read; None if any may.
    dense : callable ``(specs, **attrs) -> bool`` or None
        Whether inputs that are not C-contiguous are copied by each call; then a plan makes
        the copy, once.
    parts : callable ``(inputs, **attrs) -> sequence`` or None
        The same in smaller operations, from tensors to tensors, within rounding: where
        neighbours are fused that may be faster than ``kernel``.
    part : callable ``(ins, start, stop, **attrs) -> ins or None`` or None
        Arrays from which the same kernel computes rows ``start`` to ``stop`` (along axis 0)
        of the only output; None if it cannot.
    narrow : callable ``(specs, **attrs) -> sequence of int`` or None
        Which inputs, given in float32, had better be rounded to bfloat16: there is a kernel
        that multiplies such numbers faster, and adds up in float32. The outputs stay float32.
    then : callable ``(specs, after, **attrs) -> Primitive or None`` or None
        A row that does the same and goes on: ``after`` names element-wise rows with their
        attributes, each of which takes what the one before has made and, if it is binary, one
        more input. ``specs`` are those of all inputs; the row takes ``after`` as an attribute.
        None if there is no such row for these, or it would not pay.
    loops : bool
        Whether ``bind`` and ``scratch``, or ``kernel`` if there is no ``bind``, take one more
        argument, ``loop``, with which that compiles what is done element by element: see
        `hpctrain.graph.inner`.
    signs : tuple of int
        Inputs of which nothing but the sign matters: rounded ones do as well.
    onto : bool
        ``vjp`` takes one more argument, ``known``: for each input what later operations have
        given as its cotangent, or None. It returns their sum with its own, so that a loop
        adds its terms one by one, in the order in which its steps would have added them.
    """

    name: str
    kind: str
    infer: Callable[..., Sequence[Spec]]
    kernel: Callable[..., None]
    vjp: Callable[..., Sequence[Any]] | None = None
    view: Callable[..., Any] | None = None
    scratch: Callable[..., Sequence[Spec]] | None = None
    inplace: tuple[tuple[int, int], ...] = ()
    pure: bool = True
    any_strides: bool = False
    element: Callable[..., Any] | None = None
    total: Callable[..., tuple[tuple[int, ...], float]] | None = None
    bind: Callable[..., Callable[[], None] | None] | None = None
    dense: Callable[..., bool] | None = None
    parts: Callable[..., Sequence[Any]] | None = None
    rows: Callable[..., int | None] | None = None
    looks_up: Callable[..., int | None] | None = None
    part: Callable[..., Sequence[Any] | None] | None = None
    narrow: Callable[..., Sequence[int]] | None = None
    then: Callable[..., "Primitive | None"] | None = None
    loops: bool = False
    signs: tuple[int, ...] = ()
    onto: bool = False

    def __post_init__(self) -> None:
        assert self.kind in KINDS, f"{self.name}: unknown kind {self.kind!r}"


_TABLE: dict[str, Primitive] = {}
PRIMITIVES: Mapping[str, Primitive] = MappingProxyType(
    _TABLE
)  # filled at import, then only read


def register(row: Primitive) -> Primitive:
    """Add a row to the table and return it; a name can be taken only once."""
    assert row.name not in _TABLE, f"primitive {row.name!r} is registered twice"
    _TABLE[row.name] = row
    return row


def primitive(name: str) -> Primitive:
    """Return the row called ``name``.

    Raises
    ------
    ShapeError
        If there is none.
    """
    try:
        return _TABLE[name]
    except KeyError:
        raise ShapeError(f"primitive: there is no operation called {name!r}") from None
