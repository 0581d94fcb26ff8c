"""Streams of random numbers for the nodes that draw them."""

import hashlib
from typing import Any

import numpy as np

from hpctrain.autograd import Tensor
from hpctrain.backend import CPU, Device

__all__ = ["make_stream"]


def make_stream(seed: int, name: str, device: Device = CPU) -> Any:
    """Return a stream, three unsigned numbers of 64 bits, that depends on seed and name alone.

    So every rank and every device that binds the same symbol draws the same numbers for the
    same row of a batch.
    """
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    key = int.from_bytes(digest, "little")
    return Tensor(np.array([key, 0, 0], np.uint64), device=device)
