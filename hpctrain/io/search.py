"""Where a value stands in the files: for messages about it."""

from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import numpy as np

from hpctrain.io.manifest import Field
from hpctrain.io.records import Records

__all__ = ["holders"]

READ_BYTES = 1 << 20


def holders(
    sets: Sequence[Records], value: int, limit_s: float = 5.0
) -> list[tuple[Path, int, str]]:
    """Return the first record of each field of integers that holds a value.

    Parameters
    ----------
    sets : sequence of Records
        Looked through in order. Their files are opened anew: others may be reading.
    value : int
    limit_s : float
        Seconds after which to give up.

    Returns
    -------
    list of (path of the file, number of the record in it, name of the field)
        At most one for each name.

    Raises
    ------
    DataError
        If a file is missing or damaged.
    """
    end, found = monotonic() + limit_s, dict[str, tuple[Path, int, str]]()
    for known in sets:
        with Records(known.parts, known.fields) as records:
            for field in records.fields:
                whole = field.delivered().kind == "i"
                number = _first(records, field, value, end) if whole else None
                if number is not None:
                    part = int(np.searchsorted(records.starts, number, side="right")) - 1
                    place = number - int(records.starts[part])
                    found.setdefault(field.name, (records.parts[part].path, place, field.name))
    return list(found.values())


def _first(records: Records, field: Field, value: int, end: float) -> int | None:
    """Return the number of the first record that holds a value, if it is found in time."""
    step = max(1, READ_BYTES // max(field.record_bytes, 1))
    for start in range(0, records.n, step):
        if monotonic() > end:
            return None
        ids = np.arange(start, min(start + step, records.n))
        array = np.empty((len(ids), *field.shape), field.delivered())
        records.read(ids, {field.name: array})
        has = (array == value).reshape(len(ids), -1).any(1)
        if has.any():
            return start + int(has.argmax())
    return None
