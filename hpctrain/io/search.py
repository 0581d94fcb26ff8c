"""Where values stand in the files: for messages about them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.io.manifest import Field
from hpctrain.io.records import Records

__all__ = ["holders", "not_finite"]

READ_BYTES = 1 << 20
LIMIT_BYTES = 256 << 20

Place = tuple[Path, int, str]


def holders(sets: Sequence[Records], value: int, limit: int = LIMIT_BYTES) -> list[Place]:
    """Return the first record of each field of numbers or classes that holds a value.

    Parameters
    ----------
    sets : sequence of Records
        Looked through in order. Their files are opened anew: others may be reading.
    value : int
    limit : int
        Bytes of each field after which to give up: every rank finds the same.

    Returns
    -------
    list of (path of the file, number of the record in it, name of the field)
        At most one for each name.

    Raises
    ------
    DataError
        If a file is missing or damaged.
    """

    def counts(field: Field) -> bool:
        return field.role == "target" or field.delivered().kind == "i"

    return _places(sets, counts, lambda array: array == value, limit)


def not_finite(sets: Sequence[Records], limit: int = LIMIT_BYTES) -> list[Place]:
    """Return the first record of each field that holds an infinite number or NaN.

    Otherwise as `holders`.
    """

    def counts(field: Field) -> bool:
        return field.stored.kind == "f"

    return _places(sets, counts, lambda array: ~np.isfinite(array), limit)


def _places(
    sets: Sequence[Records],
    counts: Callable[[Field], bool],
    wanted: Callable[[Any], Any],
    limit: int,
) -> list[Place]:
    found = dict[str, Place]()
    for known in sets:
        with Records(known.parts, known.fields) as records:
            for field in filter(counts, records.fields):
                number = _first(records, field, wanted, limit)
                if number is not None:
                    part = int(np.searchsorted(records.starts, number, side="right")) - 1
                    place = number - int(records.starts[part])
                    found.setdefault(field.name, (records.parts[part].path, place, field.name))
    return list(found.values())


def _first(
    records: Records, field: Field, wanted: Callable[[Any], Any], limit: int
) -> int | None:
    """Return the number of the first record that has what is wanted, if it comes in time."""
    size = max(1, field.record_bytes)
    step, end = max(1, READ_BYTES // size), min(records.n, limit // size)
    for start in range(0, end, step):
        ids = np.arange(start, min(start + step, end))
        array = np.empty((len(ids), *field.shape), field.delivered())
        records.read(ids, {field.name: array})
        has = wanted(array).reshape(len(ids), -1).any(1)
        if has.any():
            return start + int(has.argmax())
    return None
