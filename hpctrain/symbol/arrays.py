"""Arrays in a file: NumPy's ``.npz``, without compression or pickles, or MXNet's ``.params``.

What is read tells by its first bytes which of the two it is; what is written, by its name.
"""

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.symbol.paramfile import MAGIC, read_params, write_params

__all__ = ["load_arrays", "named", "read_arrays", "save_arrays", "write_arrays"]


def save_arrays(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """Write host arrays to ``path``, which appears as a whole or not at all.

    Parameters
    ----------
    path : path
        Any name; ``np.load`` reads it.
    arrays : mapping of str to ndarray

    Notes
    -----
    Equal arrays give equal bytes. Several ranks that write the same file do not disturb each
    other, but each writes it: leave that to one.
    """
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(unfinished, "w", allowZip64=True) as archive:
            for name, array in arrays.items():
                member = zipfile.ZipInfo(f"{name}.npy")  # of 1980, so that bytes do not vary
                with archive.open(member, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Return the arrays that `save_arrays` wrote.

    Raises
    ------
    CheckpointError
        If the file is damaged, or of another kind.
    """
    try:
        # Opened here, since np.load leaves a file that it does not understand open.
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, ValueError, EOFError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: is no archive of arrays: {error}; write it with save_checkpoint"
        ) from None


def write_arrays(path: str | Path, arrays: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write host arrays as MXNet does, or by `save_arrays` if ``path`` ends in ``.npz``."""
    if Path(path).suffix != ".npz":
        write_params(path, arrays)
    elif isinstance(arrays, Mapping):
        save_arrays(path, arrays)
    else:
        raise ConfigError(f"{path}: got {len(arrays)} arrays without names, needed names")


def read_arrays(path: str | Path) -> dict[str, np.ndarray] | list[np.ndarray]:
    """Return the arrays that `write_arrays`, or MXNet, wrote: a list if they have no names.

    Raises
    ------
    CheckpointError
        If the file is missing, a damaged archive, or of another kind.
    DataError
        If it is a damaged file of MXNet's, or has sparse arrays.
    """
    try:
        with Path(path).open("rb") as file:
            head = file.read(len(MAGIC))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    return read_params(path) if head[:4] == MAGIC[:4] else load_arrays(path)


def named(
    path: str | Path, arrays: dict[str, np.ndarray] | list[np.ndarray]
) -> dict[str, np.ndarray]:
    """Return what `read_arrays` gave if it has names; none of nothing will do."""
    if isinstance(arrays, dict):
        return arrays
    if arrays:
        raise CheckpointError(f"{path}: has {len(arrays)} arrays without names, needed names")
    return {}
