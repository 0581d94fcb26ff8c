"""Find damaged files before a run, and name all of them, not only the first."""

from collections.abc import Sequence

from hpctrain.errors import DataError
from hpctrain.io.blocks import OpenFiles, Part
from hpctrain.io.manifest import Field, Shard, regular
from hpctrain.io.writer import digest

__all__ = ["problems", "refuse"]


def problems(
    parts: Sequence[Part],
    fields: Sequence[Field],
    shards: Sequence[Shard],
    numbers: Sequence[int],
) -> list[str]:
    """Return one sentence for each bad file among ``numbers``.

    Parameters
    ----------
    parts : sequence of Part
        All files of the data set.
    fields : sequence of Field
        What each of them must hold.
    shards : sequence of Shard
        The manifest's rows for the same files; empty if there is no manifest.
    numbers : sequence of int
        The files to look at.

    Notes
    -----
    With a manifest each file's size and SHA-256 are compared before HDF5 opens it.
    Without one every chunk is decoded, which finds damage only where the file has
    checksums or compression.  Either way all bytes are read once.
    """
    found = []
    for number in numbers:
        try:
            if shards:
                _same_bytes(parts[number], shards[number])
            _same_form(parts[number], fields, decode=not shards)
        except DataError as error:
            found.append(str(error))
    return found


def refuse(found: Sequence[str]) -> None:
    """Raise one DataError that holds every sentence of ``found``, if there is any."""
    if found:
        raise DataError("\n".join(found))


def _same_bytes(part: Part, shard: Shard) -> None:
    regular(part.path)
    size = part.path.stat().st_size
    if size != shard.bytes:
        raise DataError(
            f"{part.path}: got {size:,} bytes, needed {shard.bytes:,} as in the manifest; the "
            "copy is incomplete or another version, copy it again"
        )
    if (got := digest(part.path)) != shard.sha256:
        raise DataError(
            f"{part.path}: got SHA-256 {got[:12]}…, needed {shard.sha256[:12]}… as in the "
            "manifest; the file is damaged or changed, copy it again"
        )


def _same_form(part: Part, fields: Sequence[Field], *, decode: bool) -> None:
    files = OpenFiles((part,))
    try:
        for field in fields:
            column = files.column(0, field)
            if decode and column.mapped is None:
                for index in range(-(-part.records // column.block)):
                    column.load(index)
    finally:
        files.close()
