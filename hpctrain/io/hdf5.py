"""The guarded way into HDF5 files: what opens here is plain numeric data, or it is refused.

HDF5 follows links to other files, raw storage in any path and virtual datasets without a
question, and a virtual dataset whose source is gone reads as zeros.  Data files come from
others, so none of these is read.  Reading needs no write access and takes no lock.
"""

from pathlib import Path

import h5py
import numpy as np

from hpctrain.errors import DataError

__all__ = [
    "LIBVER",
    "creation",
    "dataset",
    "filter_names",
    "numeric",
    "open_read",
    "root_names",
]

# Version bounds of what we write: metadata carry checksums; HDF5 1.10 and later read it.
LIBVER = ("v110", "v110")
# A dataset that declares this much, and 1,000 times what it stores, is a trap.
BOMB_BYTES = 4 << 30
BOMB_RATIO = 1000
_ALLOWED = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
_REFUSED = {4: "szip", 5: "nbit", 6: "scaleoffset", 32001: "blosc", 32004: "lz4",
            32008: "bitshuffle", 32015: "zstd", 32026: "blosc2"}  # fmt: skip


def open_read(path: str | Path) -> h5py.File:
    """Open a finished HDF5 file for reading, without a lock.

    Raises
    ------
    DataError
        If there is no such file, or it is no HDF5 file, or it is cut off.
    """
    if not Path(path).is_file():
        raise DataError(f"{path}: got no such file, needed an HDF5 file; check the data path")
    try:
        # Whole chunks are read once and kept by our own cache, so HDF5's is switched off.
        return h5py.File(path, "r", locking=False, rdcc_nbytes=0)
    except OSError as error:
        raise DataError(f"{path}: {_diagnosis(path, error)} ({error})") from error


def _diagnosis(path: str | Path, cause: OSError) -> str:
    """Say why HDF5 may have refused a file, and what to do."""
    if "locking flag" in str(cause) or "already open" in str(cause):
        return "got a file that is already open in this process; close it first"
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        return f"got {error.strerror!r}, needed a readable file; check its permissions"
    if magic[:3] == b"CDF":
        return "got a netCDF-3 file, needed HDF5; convert it with nccopy -k nc4"
    if magic == b"\x89HDF":
        return "got a damaged or cut-off HDF5 file; copy or make it again"
    return "got a file of another kind, needed HDF5; check the data path"


def dataset(file: h5py.File, path: str) -> h5py.Dataset:
    """Return the numeric dataset at ``path``, reached by hard links only.

    Parameters
    ----------
    file : h5py.File
        Open file.
    path : str
        Name inside the file, components parted by ``/``.

    Raises
    ------
    DataError
        If it is missing, is a link, lies outside the file, is virtual, is not of plain
        numbers, needs a filter that is not built in, or declares far more than it stores.
    """
    where = f"{file.filename}:{path}"
    node = file
    for name in path.strip("/").split("/"):
        link = node.get(name, getlink=True) if isinstance(node, h5py.Group) else None
        if link is None:
            names = ", ".join(root_names(file)) or "nothing"
            raise DataError(f"{where}: no such dataset; the file holds {names}")
        if type(link) is not h5py.HardLink:
            raise DataError(
                f"{where}: got a {type(link).__name__} at {name!r}, needed data in the file "
                "itself; copy the data into the file"
            )
        node = node[name]
    if not isinstance(node, h5py.Dataset):
        raise DataError(f"{where}: got a group, needed a dataset; it holds {', '.join(node)}")
    check(node, where)
    return node


def check(dset: h5py.Dataset, where: str) -> None:
    """Refuse a dataset that is not plain numbers inside its own file."""
    if dset.is_virtual:
        raise DataError(
            f"{where}: got a virtual dataset, whose sources may be missing or elsewhere; name "
            "the source files instead"
        )
    if dset.external is not None:
        raise DataError(
            f"{where}: got external storage, needed data in the file itself; copy it with "
            "h5repack"
        )
    numeric(dset, where)
    names = filter_names(dset)
    if bad := [name for name in names if name not in _ALLOWED.values()]:
        raise DataError(
            f"{where}: got filter {', '.join(bad)}, needed one of "
            f"{', '.join(_ALLOWED.values())}; rewrite it with h5repack -f SHUF -f GZIP=1"
        )
    stored = int(dset.id.get_storage_size())
    if dset.nbytes > BOMB_BYTES and dset.nbytes > BOMB_RATIO * max(stored, 1):
        raise DataError(
            f"{where}: declares {dset.nbytes:,} bytes but stores {stored:,}; it is damaged or "
            "hostile"
        )


def numeric(dset: h5py.Dataset, where: str) -> np.dtype:
    """Return the dtype of a dataset of booleans, integers or floats of at most 8 bytes."""
    try:
        dtype = np.dtype(dset.dtype)
    except TypeError as error:
        raise DataError(f"{where}: {error}, needed booleans, integers or floats") from error
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise DataError(
            f"{where}: got {dtype}, needed booleans, integers or floats of at most 8 bytes"
        )
    return dtype


def filter_names(dset: h5py.Dataset) -> tuple[str, ...]:
    """Return the names of a dataset's filters in order; an unknown one is its number."""
    plist = dset.id.get_create_plist()
    codes = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    return tuple(_ALLOWED.get(code) or _REFUSED.get(code) or str(code) for code in codes)


def creation(filters: tuple[str, ...]) -> dict[str, object]:
    """Return h5py's arguments that make a dataset with these filters."""
    kinds = [name for name in filters if name in ("gzip", "lzf")]
    return {
        "shuffle": "shuffle" in filters,
        "fletcher32": "fletcher32" in filters,
        "compression": kinds[0] if kinds else None,
        "compression_opts": 6 if kinds == ["gzip"] else None,
    }


def root_names(file: h5py.File) -> list[str]:
    """Return the paths of the datasets of a file that hard links reach, in name order."""
    found: list[str] = []
    waiting = [(file, "", 0)]
    while waiting:
        group, prefix, depth = waiting.pop()
        for name in group:
            if type(group.get(name, getlink=True)) is not h5py.HardLink:
                continue
            node = group[name]
            if isinstance(node, h5py.Dataset):
                found.append(prefix + name)
            elif isinstance(node, h5py.Group) and depth < 8:  # a hard link may close a cycle
                waiting.append((node, f"{prefix}{name}/", depth + 1))
        if len(found) > 1000:
            break
    return sorted(found)
