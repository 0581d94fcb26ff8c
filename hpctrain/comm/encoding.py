"""What the codecs share: blocks that fit the cache, and the check of what they are given.

A codec makes a few passes over each value.  It takes `BLOCK` values at a time through all of
them, so that the passes after the first find the block in the cache.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError, ShapeError

Floats = np.ndarray[Any, np.dtype[np.float32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

BLOCK = 32768
"""Values in a block: of 4096 to 65536 the fastest here (2 MiB of level-2 cache a core)."""


def blocks(count: int) -> Iterator[slice]:
    """Cut ``count`` values into blocks; only the last is shorter than `BLOCK`.

    Examples
    --------
    >>> list(blocks(40000))
    [slice(0, 32768, None), slice(32768, 40000, None)]
    """
    return (slice(i, min(i + BLOCK, count)) for i in range(0, count, BLOCK))


def check(
    name: str, values: Floats, encoded: Bytes, nbytes: int, residual: Floats | None = None
) -> None:
    """Refuse arrays that the codec ``name`` cannot work on.

    Parameters
    ----------
    name : str
    values, encoded : ndarray
        The two sides of the codec, whichever is read and whichever is written.
    nbytes : int
        What the encoding of ``values`` needs.
    residual : ndarray or None

    Raises
    ------
    ConfigError
        If ``values`` are not float32.
    ShapeError
        If the lengths do not fit, or an array is not flat, or of a wrong dtype.
    """
    if values.dtype != np.float32:
        raise ConfigError(
            f"exchange: {name} got gradients of {values.dtype}, needed float32; "
            "switch compression off, or train in float32"
        )
    if values.ndim != 1 or not values.flags.c_contiguous:
        raise ShapeError(
            f"{name}: got values of shape {values.shape} and strides {values.strides}, "
            "needed a flat contiguous array; pass reshape(-1) of it"
        )
    if encoded.dtype != np.uint8 or encoded.shape != (nbytes,):
        raise ShapeError(
            f"{name}: got {encoded.dtype} of shape {encoded.shape} for {values.size} values, "
            f"needed uint8 of shape ({nbytes},); ask nbytes for the size"
        )
    if residual is not None and (
        residual.dtype != np.float32 or residual.shape != values.shape
    ):
        raise ShapeError(
            f"{name}: got a residual of {residual.dtype} and shape {residual.shape}, "
            f"needed float32 of shape {values.shape}; keep one for each slice"
        )
