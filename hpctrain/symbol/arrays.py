"""Named arrays in a file: NumPy's ``.npz``, without compression and without pickles."""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.errors import CheckpointError

__all__ = ["load_arrays", "save_arrays"]


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
