"""What ``manifest.json`` of a shard folder says: the fields of a record, and the shards.

It is written last, so a folder without one is an unfinished conversion.  It holds no time
and no path of the machine: the same data make the same bytes.
"""

import os
import re
import stat
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from hpctrain.errors import DataError

__all__ = [
    "MANIFEST",
    "VERSION",
    "Field",
    "Manifest",
    "Role",
    "Shard",
    "load",
    "regular",
    "replace",
    "save",
]

MANIFEST = "manifest.json"
VERSION = 1
MAX_BYTES = 100 << 20

Role = Literal["input", "target"]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")
_DTYPE = re.compile(r"[<>|](b1|[iu][1248]|f[248])")


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One named array of every record.

    Attributes
    ----------
    name : str
        What the field is called in a batch.
    path : str
        Where it lies inside each file; empty means ``name``.
    dtype : str
        NumPy's name of the stored type with byte order, such as ``|u1`` or ``<f4``.
    shape : tuple of int
        Shape of one record, without the record axis.
    role : {"input", "target"}
        What training uses it for.
    chunk : tuple of int
        Chunk shape with the record axis first; empty if unknown or contiguous.
    filters : tuple of str
        Filters of the stored chunks, in order.
    scale, offset : float or None
        A reader gives ``stored · scale + offset``, in floating point, if either is set.
    """

    name: str
    dtype: str
    shape: tuple[Count, ...] = ()
    role: Role = "input"
    path: str = ""
    chunk: tuple[Count, ...] = ()
    filters: tuple[str, ...] = ()
    scale: float | None = None
    offset: float | None = None

    @property
    def where(self) -> str:
        """The dataset's path inside a file."""
        return self.path or self.name

    @property
    def stored(self) -> np.dtype:
        """The dtype in the file."""
        return np.dtype(self.dtype)

    @property
    def record_bytes(self) -> int:
        """Bytes of one record as stored, before compression."""
        return int(np.prod(self.shape, dtype=np.float64)) * self.stored.itemsize

    def delivered(self, floats: npt.DTypeLike = np.float32) -> np.dtype:
        """Return the dtype that a reader gives when floats are wanted as ``floats``.

        Scaled fields and stored floats become ``floats``; other integers stay integers,
        int32 where the stored type fits and int64 otherwise.
        """
        if self.scale is not None or self.offset is not None or self.stored.kind == "f":
            return np.dtype(floats)
        fits = self.stored.kind == "b" or np.can_cast(self.stored, np.int32)
        return np.dtype(np.int32 if fits else np.int64)


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of a shard folder: name, size and SHA-256 of the file, number of records."""

    name: str
    bytes: Count
    records: Count
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of the records of a folder, and its shards in record order."""

    format: Literal["hpctrain shards"] = "hpctrain shards"
    version: int = VERSION
    command: str = ""
    fields: tuple[Field, ...]
    shards: tuple[Shard, ...]

    @property
    def n(self) -> int:
        """Number of records in all shards."""
        return sum(shard.records for shard in self.shards)


def load(folder: str | Path) -> Manifest:
    """Read and check the manifest of a shard folder.

    Raises
    ------
    DataError
        If it is missing (the conversion did not finish), is not of this form or version,
        or holds a name that could lead out of the folder.
    """
    path = Path(folder) / MANIFEST
    if not path.exists():
        raise DataError(
            f"{path}: no such file, so the shards are unfinished or elsewhere; convert the "
            "data again"
        )
    regular(path)
    if (size := path.stat().st_size) > MAX_BYTES:
        raise DataError(
            f"{path}: got {size:,} bytes, needed at most {MAX_BYTES:,}; it is no manifest"
        )
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: {error}, needed a manifest of hpctrain shards; convert the data again"
        ) from error
    if manifest.version != VERSION:
        raise DataError(
            f"{path}: got version {manifest.version}, needed {VERSION}; update hpctrain or "
            "convert again"
        )
    _check(manifest, str(path))
    return manifest


def save(folder: str | Path, manifest: Manifest) -> None:
    """Write the manifest of a shard folder; it appears whole or not at all."""
    _check(manifest, str(folder))
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    replace(Path(folder) / MANIFEST, text)


def _check(manifest: Manifest, where: str) -> None:
    """Refuse names, dtypes and sizes that no writer of ours makes."""
    names = [shard.name for shard in manifest.shards] + [
        field.name for field in manifest.fields
    ]
    parts = [part for field in manifest.fields for part in field.where.split("/")]
    for name in names + parts:
        if not _NAME.fullmatch(name):
            raise DataError(
                f"{where}: got the name {name[:80]!r}, needed letters, digits and ._- only, "
                "without a leading dot; do not use this data"
            )
    if len(set(names)) != len(names) or not manifest.fields:
        raise DataError(
            f"{where}: got {len(names) - len(set(names))} repeated names and "
            f"{len(manifest.fields)} fields, needed each once and at least one; convert the "
            "data again"
        )
    for field in manifest.fields:
        if not _DTYPE.fullmatch(field.dtype):
            raise DataError(
                f"{where}: field {field.name} has dtype {field.dtype!r}, needed e.g. '<f4' or "
                "'|u1'"
            )
        if len(field.shape) > 31 or field.record_bytes > 2**40:
            raise DataError(
                f"{where}: field {field.name} has records of shape {field.shape}, too large to "
                "be true"
            )


def regular(path: Path) -> None:
    """Refuse a path whose last part is not a plain file, such as a symbolic link."""
    try:
        mode = os.lstat(path).st_mode
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}, needed a file that the manifest names; copy the data "
            "again"
        ) from error
    if not stat.S_ISREG(mode):
        kind = "symbolic link" if stat.S_ISLNK(mode) else "special file"
        raise DataError(
            f"{path}: got a {kind}, needed a plain file; copy the file into the folder"
        )


def replace(path: Path, data: bytes | None = None) -> None:
    """Put ``data``, or the file ``temporary(path)``, at ``path`` in one step, synced."""
    temp = temporary(path)
    with open(temp, "r+b" if data is None else "wb") as file:
        if data is not None:
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temp, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def temporary(path: Path) -> Path:
    """Return the name under which this process writes ``path`` before it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
