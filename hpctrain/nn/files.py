"""Parameters in a NumPy file, for exchange with other programs; not a checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from hpctrain.backend import Device
from hpctrain.errors import CheckpointError
from hpctrain.nn.parameter import Parameter

__all__ = ["load", "save"]


def save(path: str | Path, parameters: Mapping[str, Parameter]) -> None:
    """Write the parameters to ``path``, an ``.npz`` archive of one array for each name."""
    arrays = {name: parameter.data().asnumpy() for name, parameter in parameters.items()}
    with Path(path).open("wb") as file:  # a file, since NumPy would append .npz to a name
        np.savez(file, allow_pickle=False, **arrays)


def load(
    path: str | Path,
    parameters: Mapping[str, Parameter],
    ctx: Device | Sequence[Device] | None = None,
    allow_missing: bool = False,
    ignore_extra: bool = False,
) -> None:
    """Set the parameters from a file that `save` wrote.

    Parameters
    ----------
    path : path
    parameters : mapping of str to Parameter
    ctx : Device or sequence of Device, optional
        Where to create those that are not initialised.
    allow_missing, ignore_extra : bool
        Whether the file may lack parameters, or have others.

    Raises
    ------
    CheckpointError
        If the file is damaged, lacks a parameter, or has one too many.
    ShapeError
        If a shape differs.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (BadZipFile, ValueError, EOFError) as error:
        raise CheckpointError(f"{path}: is no archive of parameters: {error}") from error
    missing = [name for name in parameters if name not in found]
    extra = [name for name in found if name not in parameters]
    if missing and not allow_missing:
        raise CheckpointError(
            f"{path}: lacks {len(missing)} of {len(parameters)} parameters, {missing[0]!r} "
            "first; allow_missing=True leaves them as they are"
        )
    if extra and not ignore_extra:
        raise CheckpointError(
            f"{path}: has {len(extra)} parameters that the model has not, {extra[0]!r} first; "
            "ignore_extra=True leaves them out"
        )
    for name, parameter in parameters.items():
        if name in found:
            parameter.set_data(found[name], ctx)
