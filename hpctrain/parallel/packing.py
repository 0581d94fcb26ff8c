"""Several arrays in one piece of memory: what a message carries, and what a stage keeps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.graph.memory import ALIGNMENT

__all__ = ["Packing", "pack"]


@dataclass(frozen=True, slots=True)
class Packing:
    """Where each value lies.

    Attributes
    ----------
    specs : mapping of int to Spec
        By the number of the value.
    offsets : mapping of int to int
        Bytes from the start.
    nbytes : int
    """

    specs: Mapping[int, Spec]
    offsets: Mapping[int, int]
    nbytes: int

    def views(self, memory: Any) -> dict[int, Any]:
        """Return the values as arrays in ``memory``, uint8 of at least ``nbytes``."""
        return {
            v: memory[self.offsets[v] : self.offsets[v] + spec.nbytes]
            .view(spec.dtype)
            .reshape(spec.shape)
            for v, spec in self.specs.items()
        }


def pack(specs: Mapping[int, Spec]) -> Packing:
    """Lay out values one behind the other, each at the start of a cache line.

    Examples
    --------
    >>> import numpy as np
    >>> found = pack({7: Spec((3,), np.dtype("f4")), 2: Spec((2, 2), np.dtype("f8"))})
    >>> dict(found.offsets), found.nbytes
    ({7: 0, 2: 64}, 128)
    """
    offsets, end = {}, 0
    for value, spec in specs.items():
        offsets[value] = end
        end += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
    return Packing(dict(specs), offsets, end)
