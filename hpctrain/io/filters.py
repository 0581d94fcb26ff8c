"""Which compression filters HDF5 can read and write here."""

import importlib.util

import h5py

__all__ = ["filters", "hdf5_version"]

_KNOWN = {
    "gzip": h5py.h5z.FILTER_DEFLATE,
    "lzf": h5py.h5z.FILTER_LZF,
    "szip": h5py.h5z.FILTER_SZIP,
}  # fmt: skip


def filters() -> list[str]:
    """Return the names of the filters that can be used, and of the package that brings more."""
    found = [name for name, number in _KNOWN.items() if h5py.h5z.filter_avail(number)]
    return found + [n for n in ("hdf5plugin",) if importlib.util.find_spec(n)]


def hdf5_version() -> str:
    """Return the version of the HDF5 library."""
    return str(h5py.version.hdf5_version)
