"""What passes know of primitives by name; else they know kinds and fields (and transposes).

Every algebraic identity here is *exact*: it gives the bits that the nodes it replaces would
have given, for zeros of either sign, infinities and NaN too. So there is no ``x + 0`` for
floats (-0 + 0 is +0), but ``x + (-0)`` and ``x - 0``; no ``x * 0``; and no sum of equal
numbers as a product, since a sum rounds at every step. Nor is a C-contiguous result replaced
by the same elements with other strides: products and sums downstream may round otherwise.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.backend import to_host
from hpctrain.graph.ir import Node

__all__ = ["IDENTITIES", "TURNED", "Instead", "Sight"]

_LOOKED_AT = 4096  # elements: a larger constant is not searched for equal elements
_SAME_EVERYWHERE = {"ones_like": 1, "zeros_like": 0}


@dataclass(frozen=True, slots=True)
class Instead:
    """An operation to put in place of a node; the name is that of a primitive."""

    name: str
    inputs: tuple[int, ...]
    attrs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sight:
    """What an identity may look at: everything that comes before the node."""

    specs: Mapping[int, Spec]
    maker: Mapping[int, Node]
    constants: Mapping[int, Any]

    def made_by(self, value: int, name: str) -> Node | None:
        """Return the node that makes ``value`` if it applies the primitive ``name``."""
        node = self.maker.get(value)
        return node if node is not None and node.row.name == name else None

    def plain(self, value: int) -> bool:
        """Return whether ``value`` is C-contiguous for certain."""
        if value in self.constants:
            return bool(self.constants[value].flags.c_contiguous)
        node = self.maker.get(value)
        if node is None or node.row.view is None:
            return True
        return node.row.name == "reshape" and self.plain(node.inputs[0])

    def number(self, value: int) -> Any:
        """Return the number that all elements of ``value`` are, None if not known."""
        if value in self.constants:
            return _uniform(self.specs[value], self.constants[value])
        node = self.maker.get(value)
        if node is None:
            return None
        if node.row.name in _SAME_EVERYWHERE:
            return self.specs[value].dtype.type(_SAME_EVERYWHERE[node.row.name])
        if node.row.name in ("broadcast_to", "reshape", "transpose"):
            return self.number(node.inputs[0])
        return None

    def is_number(self, value: int, wanted: int, negative: bool = False) -> bool:
        """Return whether all elements are ``wanted``; a zero must have the sign asked for."""
        found = self.number(value)
        if found is None or found != wanted:
            return False
        return self.specs[value].dtype.kind != "f" or bool(np.signbit(found)) == negative


def _uniform(spec: Spec, array: Any) -> Any:
    if not 0 < spec.size <= _LOOKED_AT or spec.dtype.kind not in "biuf":
        return None
    flat = to_host(array).reshape(-1)
    raw = np.ascontiguousarray(flat).view(np.uint8).reshape(flat.size, -1)
    return flat[0] if np.array_equal(raw, np.broadcast_to(raw[0], raw.shape)) else None


Found = int | Instead | None
Identity = Callable[[Sight, Node, Mapping[str, Any]], Found]


def _same(sight: Sight, node: Node, value: int) -> Found:
    equal = sight.specs[value] == sight.specs[node.outputs[0]]
    return value if equal and (node.row.view is not None or sight.plain(value)) else None


def _neutral(number: int, commutes: bool, negative: bool = False) -> Identity:
    """Make the identity of an operation that leaves ``x`` alone beside ``number``."""

    def rule(sight: Sight, node: Node, attrs: Mapping[str, Any]) -> Found:
        a, b = node.inputs
        if sight.is_number(b, number, negative):
            return _same(sight, node, a)
        if commutes and sight.is_number(a, number, negative):
            return _same(sight, node, b)
        return None

    return rule


def _undone(sight: Sight, node: Node, attrs: Mapping[str, Any]) -> Found:
    """f(f(x)) is x."""
    before = sight.made_by(node.inputs[0], node.row.name)
    if before is None or before.attrs != node.attrs:
        return None
    return _same(sight, node, before.inputs[0])


def _once(sight: Sight, node: Node, attrs: Mapping[str, Any]) -> Found:
    """f(f(x)) is f(x)."""
    before = sight.made_by(node.inputs[0], node.row.name)
    return node.inputs[0] if before is not None and before.attrs == node.attrs else None


def _either(sight: Sight, node: Node, attrs: Mapping[str, Any]) -> Found:
    a, b = node.inputs[-2:]
    return _same(sight, node, a) if a == b else None


def _unmoved(sight: Sight, node: Node, attrs: Mapping[str, Any]) -> Found:
    return _same(sight, node, node.inputs[0])


def _reshape(sight: Sight, node: Node, attrs: Mapping[str, Any]) -> Found:
    found = _unmoved(sight, node, attrs)
    before = sight.made_by(node.inputs[0], "reshape")
    if found is None and before is not None and sight.plain(before.inputs[0]):
        return Instead("reshape", before.inputs, attrs)
    return found


def _broadcast(sight: Sight, node: Node, attrs: Mapping[str, Any]) -> Found:
    found = _unmoved(sight, node, attrs)
    before = sight.made_by(node.inputs[0], "broadcast_to")
    if found is None and before is not None:
        return Instead("broadcast_to", before.inputs, attrs)
    return found


def _transpose(sight: Sight, node: Node, attrs: Mapping[str, Any]) -> Found:
    axes, source = attrs["axes"], node.inputs[0]
    if axes == tuple(range(len(axes))):
        return source
    shape = sight.specs[source].shape
    long = [a for a in range(len(axes)) if shape[a] != 1]
    if [a for a in axes if a in long] == long and sight.plain(source):
        return Instead("reshape", (source,), {"shape": tuple(shape[a] for a in axes)})
    before = sight.made_by(source, "transpose")
    if before is None:
        return None
    inner = dict(before.attrs)["axes"]
    return Instead("transpose", before.inputs, {"axes": tuple(inner[a] for a in axes)})


def _holds_all(narrow: np.dtype[Any], wide: np.dtype[Any]) -> bool:
    """Return whether each value of ``narrow`` is one of ``wide``."""
    if narrow.kind in "iu" and wide.kind == "f":
        return 8 * narrow.itemsize <= np.finfo(wide).nmant + 1
    return np.can_cast(narrow, wide, "safe")


def _cast(sight: Sight, node: Node, attrs: Mapping[str, Any]) -> Found:
    found = _unmoved(sight, node, attrs)
    before = sight.made_by(node.inputs[0], "cast")
    if found is not None or before is None:
        return found
    first, middle = (sight.specs[v].dtype for v in (before.inputs[0], node.inputs[0]))
    to_truth = sight.specs[node.outputs[0]].dtype.kind == "b"
    if _holds_all(first, middle) and not to_truth:
        return Instead("cast", before.inputs, attrs)
    return None


def _slice(sight: Sight, node: Node, attrs: Mapping[str, Any]) -> Found:
    return (
        None if any(isinstance(k, int) for k in attrs["key"]) else _unmoved(sight, node, attrs)
    )


def _concat(sight: Sight, node: Node, attrs: Mapping[str, Any]) -> Found:
    return _same(sight, node, node.inputs[0]) if len(node.inputs) == 1 else None


IDENTITIES: Mapping[str, Identity] = MappingProxyType(
    {
        "multiply": _neutral(1, commutes=True),  # x * 1
        "divide": _neutral(1, commutes=False),  # x / 1
        "add": _neutral(0, commutes=True, negative=True),  # x + (-0); whole numbers: x + 0
        "subtract": _neutral(0, commutes=False),  # x - 0
        "negative": _undone,
        "flip": _undone,
        "relu": _once,
        "abs": _once,
        "identity": _unmoved,
        "maximum": _either,
        "minimum": _either,
        "where": _either,
        "reshape": _reshape,
        "transpose": _transpose,
        "broadcast_to": _broadcast,
        "sum_to": _unmoved,
        "cast": _cast,
        "slice": _slice,
        "slice_grad": _unmoved,
        "pad": _unmoved,
        "concat": _concat,
    }
)


# Movements that can be applied to transposed inputs, where axis ``i`` has become
# ``place[i]``, to give their result transposed in the same way: their attributes then.
Turn = Callable[[Mapping[str, Any], tuple[int, ...]], dict[str, Any] | None]


def _each_axis(values: Any, place: tuple[int, ...]) -> tuple[Any, ...]:
    back = sorted(range(len(place)), key=place.__getitem__)
    return tuple(values[a] for a in back)


def _turned_key(attrs: Mapping[str, Any], place: tuple[int, ...]) -> dict[str, Any] | None:
    if any(isinstance(k, int) for k in attrs["key"]):
        return None
    found = {"key": _each_axis(attrs["key"], place)}
    return found | {"shape": _each_axis(attrs["shape"], place)} if "shape" in attrs else found


TURNED: Mapping[str, Turn] = MappingProxyType(
    {
        "concat": lambda attrs, place: {"axis": place[attrs["axis"]]},
        "flip": lambda attrs, place: {"axis": tuple(sorted(place[a] for a in attrs["axis"]))},
        "pad": lambda attrs, place: {**attrs, "widths": _each_axis(attrs["widths"], place)},
        "slice": _turned_key,
        "slice_grad": _turned_key,
    }
)
