"""Specs of factors in bfloat16: 8 significant bits each, multiplied and added up in float32."""

from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.autograd.primitive import Spec

__all__ = ["NARROW", "is_narrow", "narrowed", "wide"]

NARROW = "bfloat16"
_WIDE = np.dtype(np.float32)


def is_narrow(spec: Any) -> bool:
    """Return whether the elements are bfloat16; ``spec`` may be an array."""
    return spec.dtype.itemsize == 2 and spec.dtype.name == NARROW  # to make the name is slow


def wide(spec: Spec) -> Spec:
    """Return the spec of what products of such factors add up to."""
    return Spec(spec.shape, _WIDE) if is_narrow(spec) else spec


def narrowed(spec: Spec) -> Spec | None:
    """Return the spec of rounded elements; None if not float32 now, or bfloat16 is missing."""
    dtype = backend.bfloat16()
    return None if dtype is None or spec.dtype != _WIDE else Spec(spec.shape, dtype)
