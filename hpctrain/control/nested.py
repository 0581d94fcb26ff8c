"""Tensors in nested lists, and the form of these without the tensors."""

from collections.abc import Iterator
from typing import Any

from hpctrain.autograd import Tensor

__all__ = ["pack", "unpack"]


def pack(value: Any, tensors: list[Any]) -> Any:
    """Append the tensors in nested lists to ``tensors``; return the form they had."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return Tensor
    if isinstance(value, list | tuple):
        return (type(value), *(pack(item, tensors) for item in value))
    return ("=", value)


def unpack(form: Any, tensors: Iterator[Any]) -> Any:
    """Put tensors back into the form that `pack` returned."""
    if form is Tensor:
        return next(tensors)
    kind, *items = form
    return items[0] if kind == "=" else kind(unpack(item, tensors) for item in items)
