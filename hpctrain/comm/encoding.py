"""What the codecs share: their methods, blocks that fit the cache, the check of their arrays.

A codec makes a few passes over each value.  It takes `BLOCK` values at a time through all of
them, so that the passes after the first find the block in the cache.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError, ShapeError

Floats = np.ndarray[Any, np.dtype[np.float32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

BLOCK = 32768
"""Values in a block: of 4096 to 65536 the fastest here (2 MiB of level-2 cache a core)."""


class Codec(ABC):
    """Turns float32 values into bytes and back.

    All arrays lie on the host, are flat and contiguous.  A codec allocates nothing large after
    its first call on the longest slice, but for `move`, and is for one thread at a time.

    Attributes
    ----------
    name : str
        What `hpctrain.comm.compress.codec` calls it.
    residual : bool
        Whether `encode` needs error feedback: a residual for each slice and direction.
    """

    name: str
    residual: bool

    @abstractmethod
    def nbytes(self, count: int) -> int:
        """Return the exact size in bytes of ``count`` encoded values."""

    def of_sums(self, ranks: int) -> "Codec":
        """Return what encodes sums of values that so many ranks have encoded."""
        return self

    @abstractmethod
    def encode(self, values: Floats, out: Bytes, residual: Floats | None = None) -> None:
        """Write ``values`` into ``out``.

        Parameters
        ----------
        values : ndarray, shape (n,), float32
            Not changed.
        out : ndarray, shape (nbytes(n),), uint8
            Overwritten.
        residual : ndarray, shape (n,), float32, or None
            Added to the values; afterwards what was not sent.  Zeros at the first call.

        Raises
        ------
        ConfigError
            If the values are not float32: nothing is cast silently.
        ShapeError
            If the arrays do not fit each other.
        """

    @abstractmethod
    def decode(self, data: Bytes, out: Floats) -> None:
        """Overwrite ``out``, shape (n,), float32, with the values of ``data``."""

    @abstractmethod
    def add(self, data: Bytes, out: Floats, scale: float = 1.0) -> None:
        """Add ``scale`` times the values of ``data`` to ``out``, shape (n,), float32."""

    def move(self, known: Floats, values: Floats, out: Bytes) -> float:
        """Encode what leads from ``known`` to ``values``, and move ``known`` by what is sent.

        What is not sent is a part of the next difference: this is error feedback without a
        residual.

        Parameters
        ----------
        known, values : ndarray, shape (n,), float32
            ``known`` ends where `add` with the returned scale brings it, to the bit.
        out : ndarray, shape (nbytes(n),), uint8
            Overwritten.

        Returns
        -------
        float
            The scale for `add`.
        """
        with np.errstate(all="ignore"):
            self.encode(values - known, out)
        self.add(out, known)
        return 1.0


def blocks(count: int, start: int = 0) -> Iterator[slice]:
    """Cut the values from ``start`` to ``count`` into blocks; only the last may be short.

    Examples
    --------
    >>> list(blocks(40000))
    [slice(0, 32768, None), slice(32768, 40000, None)]
    """
    return (slice(i, min(i + BLOCK, count)) for i in range(start, count, BLOCK))


def check_encode(
    name: str, values: Floats, out: Bytes, nbytes: int, residual: Floats | None = None
) -> None:
    """Refuse arrays that the codec ``name`` cannot encode from, or into.

    Parameters
    ----------
    name : str
    values, out, residual : ndarray
        As `hpctrain.comm.compress.Codec.encode` takes them.
    nbytes : int
        What the encoding of ``values`` needs.

    Raises
    ------
    ConfigError
        If ``values`` are not float32.
    ShapeError
        If an array is not flat, contiguous, and of the right dtype and length, or is
        read-only and would be written.
    """
    _check_floats(name, values)
    _check_flat(name, "out", out, np.dtype(np.uint8), nbytes, written=True)
    if residual is not None:
        _check_flat(name, "residual", residual, values.dtype, values.size, written=True)


def check_decode(name: str, data: Bytes, out: Floats, nbytes: int) -> None:
    """Refuse arrays that the codec ``name`` cannot decode from, or into, as `check_encode`."""
    _check_floats(name, out)
    _check_flat(name, "out", out, out.dtype, out.size, written=True)
    _check_flat(name, "data", data, np.dtype(np.uint8), nbytes)


def _check_floats(name: str, values: Floats) -> None:
    if values.dtype != np.float32:
        raise ConfigError(
            f"exchange: {name} got gradients of {values.dtype}, needed float32; "
            "switch compression off, or train in float32"
        )
    _check_flat(name, "values", values, values.dtype, values.size)


def _check_flat(
    name: str,
    what: str,
    array: np.ndarray[Any, np.dtype[Any]],
    dtype: np.dtype[Any],
    size: int,
    *,
    written: bool = False,
) -> None:
    # Compiled loops take an address on trust, so nothing may pass that is not as expected.
    flags = array.flags
    if array.dtype != dtype or array.shape != (size,) or not flags.c_contiguous:
        raise ShapeError(
            f"{name}: {what} is {array.dtype} of shape {array.shape} and strides "
            f"{array.strides}, needed contiguous {dtype} of shape ({size},)"
        )
    if written and not flags.writeable:
        raise ShapeError(f"{name}: {what} is read-only; pass a copy")
