"""Capturing a function inside another one that is being captured."""

from collections.abc import Sequence
from typing import Any

from hpctrain.autograd.node import Symbol
from hpctrain.backend import Device
from hpctrain.graph.capture import Capture

__all__ = ["Inner", "flows"]


def flows(tensor: Any) -> bool:
    """Return whether gradients flow through ``tensor``."""
    return bool(tensor.requires_grad) and tensor.dtype.kind == "f"


class Inner(Capture):
    """Captures a function; what it reads from outside becomes an input of its graph.

    Parameters
    ----------
    outer : Capture or None
        What the function that encloses it is captured by; None if it is not.
    device : Device

    Attributes
    ----------
    closures : list of Tensor
        The tensors from outside.
    values : list of int
        The values that stand for them.
    assigned : dict of int to (Tensor, int)
        State that takes a new value, by ``id``, and that value.

    Notes
    -----
    On the tape a tensor from outside is kept as a *stand-in*, a leaf, so that the gradient
    walk through the function ends there.
    """

    def __init__(self, outer: Any, device: Device) -> None:
        super().__init__((), device)
        self.readable: frozenset[int] = frozenset()  # leaves of those around it, by id
        if isinstance(outer, Inner):
            self.readable = outer.readable
        elif outer is not None:
            self.readable = frozenset(id(t) for t in outer._held[: len(outer.leaves)])
        self.closures: list[Any] = []
        self.values: list[int] = []
        self.assigned: dict[int, tuple[Any, int]] = {}
        self._stand_ins: dict[int, Any] = {}

    def reads(self, tensor: Any) -> bool:
        """Return whether ``tensor`` is more than a constant to those who capture around it."""
        symbolic = isinstance(tensor.value, Symbol)
        return symbolic or tensor.requires_grad or id(tensor) in self.readable

    def _mine(self, tensor: Any) -> bool:
        return isinstance(tensor.value, Symbol) and tensor.value.graph == self.graph

    def index(self, tensor: Any) -> int:
        """Return the value that ``tensor`` stands for; an input if it is from outside."""
        if not self._mine(tensor) and self.reads(tensor):
            self._enter(tensor)
            return self._known[id(tensor)]
        return super().index(tensor)

    def _enter(self, tensor: Any) -> None:
        if id(tensor) in self._stand_ins:
            return
        value = self._value(tensor.spec)
        stand_in = self._tensor(value)
        stand_in.attach_grad("write" if tensor.requires_grad else "null")
        self._held.append(tensor)
        self._known[id(tensor)] = value
        self._stand_ins[id(tensor)] = stand_in
        self.closures.append(tensor)
        self.values.append(value)

    def stand_in(self, tensor: Any) -> Any:
        """Return the leaf that stands for a tensor from outside that is read."""
        return self._stand_ins[id(tensor)]

    def inner(self, tensor: Any) -> Any:
        """Return ``tensor`` as one of this graph."""
        if self._mine(tensor):
            return tensor
        value = self.index(tensor)
        known = self._stand_ins.get(id(tensor))
        return known if known is not None and known.requires_grad else self._tensor(value)

    def named(self, value: int) -> Any:
        """Return a tensor that stands for ``value``."""
        return self._tensor(value)

    def assign(self, target: Any, source: Any) -> None:
        """Let state from outside take ``source``; later reads of it see the new value."""
        self._enter(target)
        value = self.index(source)
        self.assigned[id(target)] = (target, value)
        self._known[id(target)] = value

    def kept(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return ``inputs`` as tensors of this graph."""
        return [self.inner(tensor) for tensor in inputs]
