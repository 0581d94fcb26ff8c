"""What workers and servers send each other: a header of 64 bytes, and raw elements behind it.

    0        8         16       24       32       40      48      56         60
    op flags version   offset   length   number   share   scale   checksum   (free)   body ...
    type key

A letter is one piece of memory and one message.  Its length is a multiple of the header's, so
that MPI can count what is longer than 2 GiB.
"""

import struct
import zlib
from typing import Any, NamedTuple, Self

import numpy as np

from hpctrain.comm.transfer import Flat, Pool
from hpctrain.errors import CommError

__all__ = ["HEADER_BYTES", "Header", "Letter", "Op"]

HEADER_BYTES = 64
_LAYOUT = struct.Struct("<BBHIqqqqddI4x")
_CHECKED = 128  # flag: there is a checksum
_TYPES = "fdlqBiIQLeb?hH"  # letters of NumPy's types that may travel


class Op:
    """What a letter asks for, or brings."""

    PUSH, PULL, VALUE, CONTROL, ROWS = range(1, 6)


class Header(NamedTuple):
    """What stands in front of the elements.

    Attributes
    ----------
    op : int
        One of `Op`.
    key : int
        Which slice; 0 to 2**32 - 1.
    version : int
        Of a push: the sender's step. Of a value: the step of the push that it answers.
    offset, length : int
        The elements of the slice that the body stands for.
    dtype : str
        NumPy's letter for the type of what travels uncompressed.
    flags : int
        Up to 127; their meaning depends on ``op``.
    number : int
        Depends on ``op``.
    share : float
        Of a push: the sender's part of the samples of the step.
    scale : float
        Of a value: factor on what a codec decodes. Of a push: the scale of its loss, or 0 for
        that of the start.
    """

    op: int
    key: int = 0
    version: int = 0
    offset: int = 0
    length: int = 0
    dtype: str = "f"
    flags: int = 0
    number: int = 0
    share: float = 0.0
    scale: float = 1.0


class Letter:
    """A header and a body in one piece of memory.

    Parameters
    ----------
    memory : ndarray of uint8
        At least 64 bytes, a multiple of them.
    nbytes : int
        Of the body.
    pool : Pool, optional
        Where the memory goes back to.
    """

    __slots__ = ("_pool", "memory", "nbytes")

    def __init__(self, memory: Flat, nbytes: int, pool: Pool | None = None) -> None:
        self.memory, self.nbytes, self._pool = memory, nbytes, pool

    @classmethod
    def room(cls, nbytes: int, pool: Pool) -> Self:
        """Return an empty letter with room for so many bytes behind the header."""
        return cls(pool.take(HEADER_BYTES + nbytes), nbytes, pool)

    @property
    def body(self) -> Flat:
        """The bytes behind the header."""
        return self.memory[HEADER_BYTES : HEADER_BYTES + self.nbytes]

    @property
    def blocks(self) -> int:
        """Length of the message, in headers."""
        return -(-(HEADER_BYTES + self.nbytes) // HEADER_BYTES)

    def view(self, dtype: Any, count: int, start: int = 0) -> Flat:
        """Return ``count`` elements that begin ``start`` bytes into the body."""
        end = start + count * np.dtype(dtype).itemsize
        return self.body[start:end].view(dtype)

    def seal(self, header: Header, debug: bool = False) -> None:
        """Write the header; with ``debug`` a checksum of the body as well."""
        checksum = self._checksum() if debug else 0
        _LAYOUT.pack_into(
            self.memory.data,
            0,
            header.op,
            header.flags | (_CHECKED if debug else 0),
            ord(header.dtype),
            header.key,
            header.version,
            header.offset,
            header.length,
            header.number,
            header.share,
            header.scale,
            checksum,
        )

    def open(self, where: str) -> Header:
        """Return the header.

        Raises
        ------
        CommError
            If it cannot be one, or the body is not what the checksum was made of.
        """
        op, flags, kind, key, version, offset, length, number, share, scale, checksum = (
            _LAYOUT.unpack_from(self.memory.data, 0)
        )
        if not Op.PUSH <= op <= Op.ROWS or kind > 127 or chr(kind) not in _TYPES:
            raise CommError(
                f"{where}: got operation {op} and type {kind} in a letter, needed a header; "
                "start all ranks with one version of hpctrain"
            )
        if flags & _CHECKED and self._checksum() != checksum:
            raise CommError(
                f"{where}: the checksum of slice {key}, version {version}, is wrong; the "
                "message was damaged on its way"
            )
        flags &= _CHECKED - 1
        return Header(op, key, version, offset, length, chr(kind), flags, number, share, scale)

    def _checksum(self) -> int:
        """Return that of all that travels, for who receives knows no other length."""
        return zlib.crc32(self.memory[HEADER_BYTES : self.blocks * HEADER_BYTES].data)

    def close(self) -> None:
        """Give the memory back; once, and only when no message uses it any longer."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.give(self.memory)
