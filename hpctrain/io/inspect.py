"""What is inside HDF5 files, in rows; nothing is followed out of a file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py

from hpctrain.errors import DataError
from hpctrain.io import hdf5

__all__ = ["Row", "describe"]

MAX_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Row:
    """One dataset, or one link that is not followed.

    ``note`` says what a reader would refuse it for: a link, virtual or external storage,
    other than plain numbers.
    """

    file: str
    path: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    chunks: tuple[int, ...] = ()
    filters: tuple[str, ...] = ()
    stored_bytes: int = 0
    raw_bytes: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    note: str = ""


def describe(path: str | Path) -> list[Row]:
    """Return one row for each dataset of a file, or of every HDF5 file in a folder.

    Raises
    ------
    DataError
        If there is no such file, or it is not HDF5.
    """
    path = Path(path)
    files = sorted(f for f in path.iterdir() if h5py.is_hdf5(f)) if path.is_dir() else [path]
    rows: list[Row] = []
    for name in files:
        with hdf5.open_read(name) as file:
            for row in _walk(file, "", ()):
                rows.append(row)
                if len(rows) >= MAX_ROWS:
                    return rows
    return rows


def _walk(group: h5py.Group, prefix: str, above: tuple[int, ...]) -> Iterator[Row]:
    for name in group:
        where = f"{prefix}{name}"
        link = group.get(name, getlink=True)
        if type(link) is not h5py.HardLink:
            yield Row(group.file.filename, where, note=f"{type(link).__name__}, not followed")
            continue
        node = group[name]
        if isinstance(node, h5py.Dataset):
            yield _row(node, where)
        elif isinstance(node, h5py.Group):
            address = h5py.h5o.get_info(node.id).addr
            if address not in above:  # a hard link to a group above it
                yield from _walk(node, f"{where}/", (*above, address))


def _row(dset: h5py.Dataset, where: str) -> Row:
    try:
        hdf5.check(dset, where)
        note = ""
    except DataError as error:
        note = str(error).removeprefix(f"{where}: ")
    attributes = tuple((name, _text(dset.attrs, name)) for name in list(dset.attrs)[:50])
    return Row(
        file=dset.file.filename,
        path=where,
        shape=dset.shape or (),
        dtype=_dtype(dset),
        chunks=dset.chunks or (),
        filters=hdf5.filter_names(dset),
        stored_bytes=int(dset.id.get_storage_size()),
        raw_bytes=int(dset.nbytes),
        attributes=attributes,
        note=note,
    )


def _dtype(dset: h5py.Dataset) -> str:
    try:
        return str(dset.dtype)
    except TypeError:
        return "unknown"


def _text(attrs: h5py.AttributeManager, name: str) -> str:
    """Return an attribute in at most 80 characters."""
    try:
        value = attrs[name]
    except (OSError, TypeError) as error:
        return f"unreadable: {error}"[:80]
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value))[:80]
