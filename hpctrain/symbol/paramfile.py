"""MXNet's binary file of arrays, ``.params``: read in all its versions, written as 1.x does.

    file    magic 0x112, 8 bytes of nothing, count, records, count of names, names
    name    length, UTF-8
    record  version, storage, shape, device, dtype, elements      releases since 1.0
            version, shape, device, dtype, elements               0.11 and 0.12
            number of axes, their lengths, device, dtype, elements     before

All numbers are little-endian. Counts have 8 bytes, and so have lengths, but for those of axes
in the oldest records; everything else has 4. A file comes from others: no count in it is
believed before the file is known to be long enough.
"""

import math
import os
import struct
from collections.abc import Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hpctrain.errors import ConfigError, DataError

__all__ = ["MAGIC", "read_params", "write_params"]

MAGIC = struct.pack("<Q", 0x112)
_V1, _V2, _V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_AXES = 32
_BFLOAT16 = 12
_DTYPES = {
    0: "<f4", 1: "<f8", 2: "<f2", 3: "|u1", 4: "<i4", 5: "|i1", 6: "<i8", 7: "|b1", 8: "<i2",
    9: "<u2", 10: "<u4", 11: "<u8", _BFLOAT16: "<u2",
}  # fmt: skip
_CODES = {np.dtype(text): code for code, text in reversed(_DTYPES.items()) if code != _BFLOAT16}
_SPARSE = {1: "row_sparse", 2: "csr"}


def read_params(path: str | Path) -> dict[str, np.ndarray] | list[np.ndarray]:
    """Return the arrays of a file that MXNet, or `write_params`, wrote.

    Returns
    -------
    dict of str to ndarray, or list of ndarray
        A list if the file has no names. Elements of 16-bit brain floats come as float32, and
        an array that has never been given a shape comes with shape (0,).

    Raises
    ------
    DataError
        If the file is damaged, of another kind, or has sparse arrays.
    """
    with Path(path).open("rb") as file:
        source = _Source(str(path), file)
        if source.take(8) != MAGIC:
            raise source.wrong("does not begin with MXNet's mark of a file of arrays, 0x112")
        source.take(8)
        arrays = [_record(source, i) for i in range(source.count("arrays", least=8))]
        names = [_name(source) for _ in range(source.count("names", least=8))]
        if source.left:
            raise source.wrong(f"has {source.left} bytes behind its end")
    if not names:
        return arrays
    if len(names) != len(arrays) or len(set(names)) != len(names):
        raise source.wrong(
            f"has {len(names)} names, {len(set(names))} of them different, for {len(arrays)} "
            "arrays"
        )
    return dict(zip(names, arrays, strict=True))


class _Source:
    """A file that is read from its start, with the number of bytes that are left."""

    def __init__(self, path: str, file: BufferedReader) -> None:
        self.path, self._file = path, file
        self.left = os.fstat(file.fileno()).st_size

    def wrong(self, what: str) -> DataError:
        return DataError(f"{self.path}: {what}, needed a whole .params file of MXNet")

    def need(self, size: int, what: str) -> None:
        if size > self.left:
            raise self.wrong(f"says {what} of {size:,} bytes where {self.left:,} are left")

    def take(self, size: int, what: str = "a header") -> bytes:
        self.need(size, what)
        self.left -= size
        data = self._file.read(size)
        if len(data) != size:
            raise self.wrong("became shorter while it was read")
        return data

    def numbers(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))

    def count(self, what: str, least: int) -> int:
        """Return a count of things that have at least ``least`` bytes each."""
        (count,) = self.numbers("Q")
        self.need(count * least, f"{count} {what}")
        return int(count)

    def fill(self, array: np.ndarray) -> None:
        """Read a flat array whose bytes `need` has seen."""
        self.left -= array.nbytes
        if self._file.readinto(array.view(np.uint8).data) != array.nbytes:
            raise self.wrong("became shorter while it was read")


def _name(source: _Source) -> str:
    (length,) = source.numbers("Q")
    try:
        return source.take(length, "a name").decode("utf-8")
    except UnicodeDecodeError:
        raise source.wrong("has a name that is no text") from None


def _record(source: _Source, number: int) -> np.ndarray:
    (version,) = source.numbers("I")
    if version in (_V2, _V3):
        (storage,) = source.numbers("i")
        if storage:
            kind = _SPARSE.get(storage, str(storage))
            raise DataError(
                f"{source.path}: array {number} has storage {kind}, needed dense; save "
                'tostype("default") of it'
            )
    shape = _shape(source, version)
    if shape is None or (not shape and version != _V3):
        return np.empty(0, np.float32)
    _, _, code = source.numbers("iii")
    if code not in _DTYPES:
        raise source.wrong(f"has the type {code} for array {number}")
    dtype = np.dtype(_DTYPES[code])
    # Python's numbers have no limit, so the product is right whatever the file says.
    source.need(math.prod(shape) * dtype.itemsize, f"elements of {shape}")
    array = np.empty(math.prod(shape), dtype)
    source.fill(array)
    if code == _BFLOAT16:  # the upper half of a float32
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.reshape(shape)


def _shape(source: _Source, version: int) -> tuple[int, ...] | None:
    """Return the lengths of the axes; None if they have never been known."""
    known = version in (_V1, _V2, _V3)
    ndim = source.numbers("i")[0] if known else version
    if ndim < 0 and version == _V3:
        return None
    if not 0 <= ndim <= _AXES:
        raise source.wrong(f"has an array of {ndim} axes")
    shape = tuple(int(n) for n in source.numbers(f"{ndim}{'q' if known else 'I'}"))
    if min(shape, default=0) >= 0:
        return shape
    if version == _V3:
        return None
    raise source.wrong(f"has an array of shape {shape}")


def write_params(
    path: str | Path, arrays: Mapping[str, np.ndarray] | Sequence[np.ndarray]
) -> None:
    """Write host arrays so that MXNet 1.x loads them.

    Parameters
    ----------
    path : path
        Appears as a whole or not at all.
    arrays : mapping of str to ndarray, or sequence of ndarray

    Raises
    ------
    ConfigError
        If MXNet has no number for a dtype.

    Notes
    -----
    MXNet loads arrays without axes or without elements only under ``mx.util.np_shape``; a
    file that has one is written, whole, in the version that asks for this.
    """
    named = isinstance(arrays, Mapping)
    items = list(arrays.items()) if isinstance(arrays, Mapping) else list(enumerate(arrays))
    values = [np.asarray(value) for _, value in items]
    names = [str(name).encode("utf-8") for name, _ in items] if named else []
    for (name, _), value in zip(items, values, strict=True):
        if value.dtype.newbyteorder("<") not in _CODES:
            raise ConfigError(
                f"{path}: got dtype {value.dtype} for {name!r}, needed one of "
                f"{', '.join(d.name for d in _CODES)}"
            )
    version = _V3 if any(not v.ndim or not v.size for v in values) else _V2
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            file.write(MAGIC + struct.pack("<QQ", 0, len(values)))
            for value in values:
                _write_record(file, value, version)
            file.write(struct.pack("<Q", len(names)))
            for name in names:
                file.write(struct.pack("<Q", len(name)) + name)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_record(file: BinaryIO, value: np.ndarray, version: int) -> None:
    dtype = value.dtype.newbyteorder("<")
    dense, device = 0, (1, 0)  # the host
    head = struct.pack("<Iii", version, dense, value.ndim)
    head += struct.pack(f"<{value.ndim}q", *value.shape)
    file.write(head + struct.pack("<iii", *device, _CODES[dtype]))
    file.write(np.ascontiguousarray(value, dtype).data)
