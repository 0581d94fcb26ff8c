"""From what a user names (a folder, a file, a pattern) to numbered records."""

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import h5py
import msgspec

from hpctrain.errors import DataError
from hpctrain.io import hdf5
from hpctrain.io.blocks import Part
from hpctrain.io.manifest import MANIFEST, Field, Role, load, regular
from hpctrain.io.records import CACHE_BYTES, Records
from hpctrain.io.verify import refuse

__all__ = ["Column", "open_records"]


class Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dataset in the user's own files, as the configuration names it.

    Attributes
    ----------
    path : str
        Dataset inside each file, components parted by ``/``.
    name : str
        Its name in a batch; the path if empty.
    scale, offset : float or None
        The reader gives ``stored · scale + offset``.
    """

    path: str
    name: str = ""
    scale: float | None = None
    offset: float | None = None


Columns = Sequence[str | Column]
Paths = str | Path | Sequence[str | Path]


def open_records(
    path: Paths,
    *,
    inputs: Columns = (),
    targets: Columns = (),
    layout: Literal["auto", "shards", "axis0", "file"] = "auto",
    cache_bytes: int = CACHE_BYTES,
) -> Records:
    """Open a data set for reading.

    Parameters
    ----------
    path : path, pattern, or sequence of them
        A shard folder, or HDF5 files; files that a pattern matches are taken in name order.
    inputs, targets : sequence of str or Column
        Datasets in the user's own files.  Not needed for shards; given, they choose
        among a shard folder's fields, by name.
    layout : {"auto", "shards", "axis0", "file"}
        ``axis0``: record = row of every dataset; ``file``: record = file.
        ``auto`` takes ``shards`` for a folder and ``axis0`` otherwise.
    cache_bytes : int
        Memory for decoded blocks.

    Raises
    ------
    DataError
        If something is missing or does not fit, in words that name it.

    Notes
    -----
    Opens every file once where the row count must be read from it (``axis0``).
    """
    if layout == "auto":
        single = isinstance(path, str | Path) and (
            Path(path).is_dir() or Path(path).name == MANIFEST
        )
        layout = "shards" if single else "axis0"
    if layout == "shards":
        if not isinstance(path, str | Path):
            raise DataError(
                f"data: got {len(path)} paths, needed one shard folder; open them one by one"
            )
        return _shards(Path(path), inputs, targets, cache_bytes)
    columns = _with_roles(inputs, targets)
    files = _files(path)
    fields = _own_fields(files[0], columns, whole=layout == "file")
    if layout == "file":
        parts = [Part(file, 1, whole=True) for file in files]
    else:
        parts = _counted(files, fields)
    return Records(parts, fields, cache_bytes=cache_bytes)


def _shards(folder: Path, inputs: Columns, targets: Columns, cache_bytes: int) -> Records:
    folder = folder.parent if folder.name == MANIFEST else folder
    manifest = load(folder)
    for shard in manifest.shards:
        regular(folder / shard.name)
    parts = [Part(folder / shard.name, shard.records) for shard in manifest.shards]
    fields: Sequence[Field] = manifest.fields
    if inputs or targets:
        chosen = _with_roles(inputs, targets)
        fields = [_choose(folder, manifest.fields, column, role) for column, role in chosen]
    return Records(parts, fields, manifest.shards, cache_bytes)


def _choose(folder: Path, fields: Sequence[Field], column: Column, role: Role) -> Field:
    for field in fields:
        if field.name == column.path:
            scale = field.scale if column.scale is None else column.scale
            offset = field.offset if column.offset is None else column.offset
            return msgspec.structs.replace(
                field,
                name=column.name or field.name,
                path=field.where,
                role=role,
                scale=scale,
                offset=offset,
            )
    names = ", ".join(field.name for field in fields)
    raise DataError(
        f"{folder}: got no field {column.path!r}, needed one of {names}; check inputs and "
        "targets"
    )


def _with_roles(inputs: Columns, targets: Columns) -> list[tuple[Column, Role]]:
    found: list[tuple[Column, Role]] = []
    for column in (*inputs, *targets):
        role: Role = "input" if len(found) < len(inputs) else "target"
        found.append((Column(column) if isinstance(column, str) else column, role))
    return found


def _files(path: Paths) -> list[Path]:
    """Return the files that the paths and patterns name."""
    names = [path] if isinstance(path, str | Path) else list(path)
    found: list[Path] = []
    for name in names:
        matches = (
            [str(name)] if Path(name).exists() else sorted(glob.glob(str(name), recursive=True))
        )
        if not matches:
            raise DataError(
                f"{name}: no such file, and no file matches it; check the data path"
            )
        found.extend(Path(match) for match in matches)
    if not found:
        raise DataError(
            "data: got an empty list of files, needed at least one; check the data path"
        )
    return found


def _own_fields(
    path: Path, columns: Sequence[tuple[Column, Role]], *, whole: bool
) -> list[Field]:
    """Describe the named datasets as they are in the first file."""
    with hdf5.open_read(path) as file:
        if not columns:
            columns = _written_roles(file)
        fields = []
        for column, role in columns:
            dset = hdf5.dataset(file, column.path)
            if not whole and dset.ndim == 0:
                raise DataError(
                    f"{path}:{column.path}: got a scalar, needed records along axis 0; take "
                    "layout 'file' if each file is one record"
                )
            field = Field(
                name=column.name or column.path,
                path=column.path,
                dtype=dset.dtype.str,
                shape=dset.shape if whole else dset.shape[1:],
                role=role,
                chunk=dset.chunks or (),
                filters=hdf5.filter_names(dset),
                scale=column.scale,
                offset=column.offset,
            )
            fields.append(field)
    if len({field.name for field in fields}) != len(fields):
        raise DataError(
            f"data: got {[f.name for f in fields]}, needed each name once; give a field "
            "another name"
        )
    return fields


def _written_roles(file: h5py.File) -> list[tuple[Column, Role]]:
    """Take the fields from the attributes, if our own writer made the file."""
    names = hdf5.root_names(file)
    if bytes(file.attrs.get("hpctrain_format", b"")) != b"shards":
        raise DataError(
            f"{file.filename}: got no inputs and targets, needed names of datasets in it, "
            f"which are {', '.join(names) or 'none'}; set inputs and targets"
        )
    found: list[tuple[Column, Role]] = []
    for name in names:
        attrs = hdf5.dataset(file, name).attrs
        role: Role = "target" if bytes(attrs.get("role", b"")) == b"target" else "input"
        scale, offset = attrs.get("scale"), attrs.get("offset")
        column = Column(
            name,
            "",
            None if scale is None else float(scale),
            None if offset is None else float(offset),
        )
        found.append((column, role))
    return found


def _counted(files: Sequence[Path], fields: Sequence[Field]) -> list[Part]:
    """Count the records of every file; all bad files are named, not only the first."""
    parts, found = [], []
    for file in files:
        try:
            parts.append(Part(file, _rows(file, fields)))
        except DataError as error:
            found.append(str(error))
    refuse(found)
    return parts


def _rows(path: Path, fields: Sequence[Field]) -> int:
    """Return how many records a file holds; all its fields must agree."""
    with hdf5.open_read(path) as file:
        dsets = [hdf5.dataset(file, field.where) for field in fields]
        counts = {
            field.name: dset.shape[0] if dset.ndim else 0
            for field, dset in zip(fields, dsets, strict=True)
        }
    if len(set(counts.values())) != 1:
        rows = ", ".join(f"{count:,} of {name}" for name, count in counts.items())
        raise DataError(f"{path}: got {rows}, needed as many of each; make the file again")
    return next(iter(counts.values()))
