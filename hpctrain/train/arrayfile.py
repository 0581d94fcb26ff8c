"""Named arrays in one HDF5 file, written so that a full disk is an error and not a crash."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpctrain.errors import CheckpointError
from hpctrain.parallel.shelf import Shelved
from hpctrain.train.manifest import Entry

__all__ = ["lend", "read", "write"]

_CHUNK_BYTES = 1 << 22
_LONGEST_NAME = 1000
_VERSION = ("v110", "v110")  # metadata checksums, readable by HDF5 1.10 and later

Array = npt.NDArray[Any]


def write(path: Path, arrays: Mapping[str, Array]) -> list[Entry]:
    """Write arrays to a new HDF5 file, one dataset each, and return what is where.

    Datasets are numbered: a name never becomes a path.  It stands in an attribute, for people.

    Raises
    ------
    CheckpointError
        If a name or a type cannot be stored.
    OSError
        If the disk is full, or another fault of the file system.
    """
    entries = [_entry(number, *item) for number, item in enumerate(arrays.items())]
    with open(path, "xb", buffering=0) as raw:
        spool = _Spool(raw.fileno())
        with h5py.File(spool, "w", libver=_VERSION) as file:
            for entry in entries:
                if spool.error is None:
                    _write_one(file, entry, arrays[entry.name])
        if spool.error is not None:
            raise spool.error
        os.ftruncate(raw.fileno(), spool.size)
    return entries


def _entry(number: int, name: str, array: Array) -> Entry:
    if not 1 <= len(name) <= _LONGEST_NAME:
        raise CheckpointError(
            f"checkpoint: got an array's name of {len(name)} characters, "
            f"needed 1 to {_LONGEST_NAME}"
        )
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise CheckpointError(
            f"checkpoint: array {name!r} is of type {array.dtype}, "
            "needed bool, integer or floating of at most 8 bytes"
        )
    return Entry(name, f"{number:05d}", array.shape, array.dtype.str)


def _write_one(file: h5py.File, entry: Entry, array: Array) -> None:
    # A scalar or an empty array cannot be in chunks, and a filter needs chunks.
    chunked: dict[str, Any] = (
        {"chunks": _chunks(array.shape, array.itemsize), "fletcher32": True}
        if array.ndim and array.size
        else {}
    )
    data = file.create_dataset(entry.dataset, data=array, track_times=False, **chunked)
    data.attrs["name"] = json.dumps(entry.name)[1:-1]


def _chunks(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Cut along the first axes until a chunk is no larger than it should be."""
    chunk = list(shape)
    for axis in range(len(chunk)):
        row = int(np.prod(chunk[axis + 1 :], dtype=np.int64)) * itemsize
        chunk[axis] = max(1, min(chunk[axis], _CHUNK_BYTES // row))
        if chunk[axis] > 1:
            break
    return tuple(chunk)


class _Spool:
    """A file for HDF5 that never fails: it keeps the first error for later.

    HDF5 1.14 and 2.0 crash when they close a file after a write has failed (tried with a file
    size limit: segmentation fault).  So from the first failure on, what is written stays in
    memory, HDF5 closes its file in peace, and the caller raises ``error``.
    """

    def __init__(self, handle: int) -> None:
        self.error: OSError | None = None
        self.size = 0
        self._handle = handle
        self._position = 0
        self._kept: list[tuple[int, bytes]] = []

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_END: self.size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = self._to_disk(view) if self.error is None else 0
        if done < len(view):
            self._kept.append((self._position + done, bytes(view[done:])))
        self._position += len(view)
        self.size = max(self.size, self._position)
        return len(view)

    def _to_disk(self, view: memoryview) -> int:
        done = 0
        try:
            while done < len(view):
                done += os.pwrite(self._handle, view[done:], self._position + done)
        except OSError as error:
            self.error = error
        return done

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        start, stop = self._position, self._position + len(view)
        got = os.preadv(self._handle, [view], start)
        view[got:] = bytes(len(view) - got)
        for offset, data in self._kept:
            low, high = max(start, offset), min(stop, offset + len(data))
            if low < high:
                view[low - start : high - start] = data[low - offset : high - offset]
        self._position = stop
        return len(view)

    def read(self, count: int) -> bytes:
        buffer = bytearray(count)
        self.readinto(buffer)
        return bytes(buffer)

    def truncate(self, size: int) -> int:
        self.size = size
        return size

    def flush(self) -> None:
        """Do nothing: every write went to the system at once."""


def read(
    path: Path, entries: Sequence[Entry], only: Collection[str] | None = None
) -> dict[str, Array]:
    """Read the arrays back, in the order of ``entries``; ``only`` some of them.

    Raises
    ------
    CheckpointError
        If the file is not of the form that ``write`` gives it: other datasets, links, data
        outside the file, filters, or more data than the file can hold.
    """
    declared = sum(_bytes(entry) for entry in entries)
    if declared > path.stat().st_size:
        raise CheckpointError(
            f"{path}: cannot hold the {declared} bytes that its manifest lists"
        )
    try:
        with h5py.File(path, "r", locking=False) as file:
            return _read_all(path, file, entries, only)
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: is damaged: {error}") from None


def lend(path: Path, entries: Sequence[Entry]) -> dict[str, Any]:
    """Return arrays that are read when they are looked at; checked as by `read`."""
    read(path, entries, only=())
    return {
        entry.name: Shelved(entry.shape, entry.dtype, partial(_alone, path, entry))
        for entry in entries
    }


def _alone(path: Path, entry: Entry) -> Array:
    with h5py.File(path, "r", locking=False) as file:
        return _whole(file, entry)


def _whole(file: h5py.File, entry: Entry) -> Array:
    array = np.empty(entry.shape, entry.dtype)
    if array.size:
        file[entry.dataset].read_direct(array)
    return array


def _read_all(
    path: Path, file: h5py.File, entries: Sequence[Entry], only: Collection[str] | None
) -> dict[str, Array]:
    if sorted(file) != sorted(entry.dataset for entry in entries):
        raise CheckpointError(f"{path}: its datasets are not those that its manifest lists")
    arrays = {}
    if len({entry.name for entry in entries}) != len(entries):
        raise CheckpointError(f"{path}: its manifest lists a name twice")
    for entry in entries:
        if fault := _fault(file, entry):
            raise CheckpointError(f"{path}: dataset {entry.dataset} ({entry.name}) {fault}")
        if only is None or entry.name in only:
            arrays[entry.name] = _whole(file, entry)
    return arrays


def _fault(file: h5py.File, entry: Entry) -> str:
    """Say why a dataset must not be read, or nothing."""
    # The link is looked at before the object behind it: opening that may open another file.
    if type(file.get(entry.dataset, getlink=True)) is not h5py.HardLink:
        return "is a link to somewhere else"
    data = file[entry.dataset]
    if not isinstance(data, h5py.Dataset):
        return "is not a dataset"
    properties = data.id.get_create_plist()
    filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
    if data.is_virtual or data.external:
        return "keeps its data in another file"
    if set(filters) - {h5py.h5z.FILTER_FLETCHER32}:
        return "is compressed, as no checkpoint is"
    if data.shape != entry.shape or data.dtype.str != entry.dtype:
        return f"is {data.shape} {data.dtype.str}, needed {entry.shape} {entry.dtype}"
    if data.id.get_storage_size() < _bytes(entry):
        return "lacks data"
    return ""


def _bytes(entry: Entry) -> int:
    size = np.dtype(entry.dtype).itemsize
    for length in entry.shape:
        size *= length
    return size
