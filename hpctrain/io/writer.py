"""Write records as shards: HDF5 files of one dataset per field, and a manifest."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import h5py
import msgspec
import numpy as np
import numpy.typing as npt

from hpctrain.errors import DataError
from hpctrain.io import hdf5
from hpctrain.io.manifest import (
    MANIFEST,
    VERSION,
    Field,
    Manifest,
    Shard,
    load,
    replace,
    save,
    temporary,
)

__all__ = [
    "ShardWriter",
    "chunk_records",
    "digest",
    "shard_name",
    "write_manifest",
    "write_shard",
]

Arrays = Mapping[str, npt.NDArray[Any]]
CHUNK_BYTES = 1 << 20
SHARD_BYTES = 256 << 20
# A larger record is cut inside, so that a part of it can be read alone.
MAX_CHUNK_BYTES = 4 << 20
# Small records share a chunk, but not so many that shuffling whole chunks mixes badly.
MAX_CHUNK_RECORDS = 256


def chunk_records(fields: Sequence[Field]) -> int:
    """Return how many records go into one chunk: about 1 MiB, at most 256 records."""
    total = sum(field.record_bytes for field in fields)
    return max(1, min(CHUNK_BYTES // max(total, 1), MAX_CHUNK_RECORDS))


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"shard-{number:05d}.h5"


def write_shard(
    folder: str | Path, number: int, fields: Sequence[Field], arrays: Arrays
) -> Shard:
    """Write one whole shard; ranks that write different numbers need not talk.

    Parameters
    ----------
    folder : path
        Existing folder.
    number : int
        Number of the shard, which is its place in record order.
    fields : sequence of Field
        As in the manifest; ``chunk`` may be empty, ``filters`` names the compression.
    arrays : mapping of str to ndarray, shape (n, *field.shape)
        One array per field.

    Returns
    -------
    Shard
        Its row of the manifest.

    Notes
    -----
    Written under a temporary name, synced and renamed.  Equal arrays make equal files.
    """
    path = Path(folder) / shard_name(number)
    n = len(arrays[fields[0].name])
    temp = temporary(path)
    try:
        with h5py.File(temp, "w", libver=hdf5.LIBVER) as file:
            # Fixed-length strings: variable ones lie in a heap that has no checksum.
            file.attrs["hpctrain_format"] = np.bytes_("shards")
            file.attrs["version"] = VERSION
            file.attrs["n"] = n
            for field in fields:
                _write_field(file, field, np.asarray(arrays[field.name]), chunk_records(fields))
        replace(path)
    finally:
        temp.unlink(missing_ok=True)
    return Shard(name=path.name, bytes=path.stat().st_size, records=n, sha256=digest(path))


def _write_field(file: h5py.File, field: Field, array: npt.NDArray[Any], rows: int) -> None:
    n = len(array)
    chunk = field.chunk or (rows, *field.shape)
    chunk = (min(chunk[0], max(n, 1)), *chunk[1:])
    options = hdf5.creation(field.filters) if n and all(chunk) else {}
    dset = file.create_dataset(
        field.where,
        shape=(n, *field.shape),
        dtype=field.stored,
        chunks=chunk if options else None,
        track_times=False,
        **options,
    )
    if n:
        dset[...] = array
    dset.attrs["role"] = np.bytes_(field.role)
    for name, value in (("scale", field.scale), ("offset", field.offset)):
        if value is not None:
            dset.attrs[name] = value


def digest(path: str | Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, as ``sha256sum`` prints it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(
    folder: str | Path, fields: Sequence[Field], shards: Sequence[Shard], command: str = ""
) -> None:
    """Declare a folder of shards complete; one rank calls it when all shards are there."""
    ordered = tuple(sorted(shards, key=lambda shard: shard.name))
    save(folder, Manifest(command=command, fields=tuple(fields), shards=ordered))


class ShardWriter:
    """Collect records and write them as shards; the manifest comes at the end of ``with``.

    Parameters
    ----------
    folder : path
        Made if it is not there.  A folder with a manifest is refused unless ``overwrite``.
    fields : sequence of Field
        What a record is.
    shard_records : int, optional
        Records of one shard; about 256 MiB if not given, which is also the memory used.
    compress : {None, "gzip", "lzf"}
        Compression after the shuffle filter.  Noise-like floats gain nothing from it.
    overwrite : bool
        Remove the manifest that is there, and the shards that it names, first.
    command : str
        What made the data, for the manifest; without paths of the machine it is portable.

    Raises
    ------
    DataError
        If the arrays do not fit the fields, or the folder is taken.
    """

    def __init__(
        self,
        folder: str | Path,
        fields: Sequence[Field],
        *,
        shard_records: int | None = None,
        compress: str | None = None,
        overwrite: bool = False,
        command: str = "",
    ) -> None:
        if compress not in (None, "gzip", "lzf"):
            raise DataError(
                f"ShardWriter: got compress={compress!r}, needed None, 'gzip' or 'lzf'"
            )
        self.folder = Path(folder)
        self.command = command
        filters = ("fletcher32",) if compress is None else ("shuffle", compress, "fletcher32")
        rows = chunk_records(fields)
        total = sum(field.record_bytes for field in fields)
        whole = max(1, SHARD_BYTES // max(total * rows, 1)) * rows
        self.shard_records = whole if shard_records is None else shard_records
        if self.shard_records < 1:
            raise DataError(
                f"ShardWriter: got {shard_records} records a shard, needed at least 1"
            )
        # Chunks of a shard as even as can be: the last one is not mostly padding.
        rows = -(-self.shard_records // -(-self.shard_records // rows))
        self.fields = tuple(_completed(field, rows, filters) for field in fields)
        self.shards: list[Shard] = []
        self._filled = 0
        self._rows = {
            f.name: np.empty((self.shard_records, *f.shape), f.stored) for f in self.fields
        }
        _prepare(self.folder, overwrite)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if error is None:
            self.close()

    def append(self, arrays: Arrays) -> None:
        """Add k records: for each field an array of shape (k, *field.shape)."""
        counts = {name: len(array) for name, array in arrays.items()}
        if set(counts) != set(self._rows) or len(set(counts.values())) != 1:
            raise DataError(
                f"{self.folder}: got {counts}, needed the same number of records for "
                f"{', '.join(self._rows)}"
            )
        for field in self.fields:
            array = arrays[field.name]
            if array.shape[1:] != field.shape or not _same_numbers(array.dtype, field.stored):
                raise DataError(
                    f"{self.folder}: field {field.name} got records of {array.dtype} "
                    f"{array.shape[1:]}, needed {field.dtype} {field.shape}"
                )
        done, count = 0, next(iter(counts.values()))
        while done < count:
            take = min(count - done, self.shard_records - self._filled)
            for name, rows in self._rows.items():
                rows[self._filled : self._filled + take] = arrays[name][done : done + take]
            self._filled += take
            done += take
            if self._filled == self.shard_records:
                self._flush()

    def _flush(self) -> None:
        rows = {name: array[: self._filled] for name, array in self._rows.items()}
        self.shards.append(write_shard(self.folder, len(self.shards), self.fields, rows))
        self._filled = 0

    def close(self) -> None:
        """Write the last shard and the manifest."""
        if self._filled:
            self._flush()
        write_manifest(self.folder, self.fields, self.shards, self.command)


def _completed(field: Field, rows: int, filters: tuple[str, ...]) -> Field:
    """Return the field with the chunk shape and filters that it will be written with."""
    inner = list(field.shape)
    while np.prod(inner, dtype=np.int64) * field.stored.itemsize > MAX_CHUNK_BYTES:
        longest = int(np.argmax(inner))
        inner[longest] = -(-inner[longest] // 2)
    return msgspec.structs.replace(field, chunk=(rows, *inner), filters=filters)


def _same_numbers(got: np.dtype, stored: np.dtype) -> bool:
    """Tell whether storing keeps the numbers, but for rounding of floats."""
    return got == stored or np.can_cast(got, stored, "safe") or (got.kind == stored.kind == "f")


def _prepare(folder: Path, overwrite: bool) -> None:
    """Make the folder; an old manifest goes before its shards, so it never names new ones."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MANIFEST).exists():
        return
    if not overwrite:
        raise DataError(
            f"{folder}: holds a finished data set already; choose another folder or overwrite "
            "it"
        )
    old = load(folder)
    (folder / MANIFEST).unlink()
    for shard in old.shards:
        (folder / shard.name).unlink(missing_ok=True)
