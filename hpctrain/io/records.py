"""Records by number, out of any number of files."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from hpctrain.errors import ShapeError
from hpctrain.io import verify
from hpctrain.io.blocks import BlockCache, OpenFiles, Part
from hpctrain.io.manifest import Field, Shard
from hpctrain.trace import Activity

__all__ = ["Records"]

CACHE_BYTES = 256 << 20
WINDOW_BYTES = 64 << 20
Ids = npt.NDArray[np.int64]


class Records:
    """The records of a data set, numbered from 0 through all its files in order.

    Parameters
    ----------
    parts : sequence of Part
        The files.
    fields : sequence of Field
        What a record holds; the same in every file.
    shards : sequence of Shard
        The manifest's rows, for `verify`; empty without a manifest.
    cache_bytes : int
        Memory for decoded blocks.

    Attributes
    ----------
    n : int
        Number of records.
    activity : Activity
        Where it is written what is read; one may be shared by all that a rank does.

    Notes
    -----
    Opens no file before one is needed, so that `verify` can look at all of them first.
    Not thread-safe: one caller at a time.  A `Loader` sees to that by an engine variable.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        fields: Sequence[Field],
        shards: Sequence[Shard] = (),
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.parts = tuple(parts)
        self.fields = tuple(fields)
        self.shards = tuple(shards)
        counts = np.array([part.records for part in parts], np.int64)
        self.starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        self.n = int(self.starts[-1])
        self.cache = BlockCache(cache_bytes)
        self.activity = Activity()
        self._files = OpenFiles(self.parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.n

    @cached_property
    def grain(self) -> int:
        """Records that are read together; the first file says it."""
        filled = np.flatnonzero(np.diff(self.starts))
        if not filled.size:
            return 1
        # Every field is looked at, so that a wrong description shows at the start.
        first = {f.name: self._files.column(int(filled[0]), f) for f in self.fields}
        return first[max(self.fields, key=lambda field: field.record_bytes).name].block

    @property
    def window(self) -> int:
        """Records among which the order may be fully random at a bearable cost."""
        record_bytes = sum(field.record_bytes for field in self.fields)
        return max(self.grain, WINDOW_BYTES // max(record_bytes, 1))

    @property
    def inputs(self) -> tuple[Field, ...]:
        """The fields that a model reads, in order."""
        return tuple(field for field in self.fields if field.role == "input")

    @property
    def targets(self) -> tuple[Field, ...]:
        """The fields that a loss compares with, in order."""
        return tuple(field for field in self.fields if field.role == "target")

    def buffers(
        self, count: int, dtype: npt.DTypeLike = np.float32
    ) -> dict[str, npt.NDArray[Any]]:
        """Allocate arrays for ``count`` records, floats as ``dtype``, as `read` takes them."""
        return {f.name: np.empty((count, *f.shape), f.delivered(dtype)) for f in self.fields}

    def read(self, ids: Ids, out: Mapping[str, npt.NDArray[Any]]) -> None:
        """Read records into arrays.

        Parameters
        ----------
        ids : ndarray, shape (k,), int64
            Record numbers, in any order, repeats allowed.
        out : mapping of str to ndarray, shape (k, *field.shape)
            Overwritten: row ``i`` gets record ``ids[i]``, cast to the array's dtype, with
            the field's scale and offset.  Fields that are not named are not read.

        Raises
        ------
        DataError
            If a file is missing or damaged, with its name and the records.
        ShapeError
            If an array has another shape, or an id is not in ``0 … n - 1``.
        """
        ids = np.asarray(ids, np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self.n):
            raise ShapeError(
                f"records: got ids from {ids.min()} to {ids.max()}, needed 0 to {self.n - 1}"
            )
        part = np.searchsorted(self.starts, ids, side="right") - 1
        local = ids - self.starts[part]
        by_name = {field.name: field for field in self.fields}
        for name, array in out.items():
            if name not in by_name:
                raise ShapeError(
                    f"records: got field {name!r}, needed one of {', '.join(by_name)}"
                )
            field = by_name[name]
            if array.shape != (len(ids), *field.shape):
                raise ShapeError(
                    f"records: got an array {array.shape} for {name}, needed "
                    f"{(len(ids), *field.shape)}"
                )
            self._fill(field, part, local, array)

    def _fill(self, field: Field, part: Ids, local: Ids, array: npt.NDArray[Any]) -> None:
        """Gather one field and scale it."""
        if field.scale is None and field.offset is None:
            self._gather(field, part, local, array)
            return
        # Packed integers are unpacked in a type that holds them: int32 needs float64.
        precise = np.result_type(field.stored, array.dtype)
        work = array if precise == array.dtype else np.empty(array.shape, precise)
        self._gather(field, part, local, work)
        if field.scale is not None:
            work *= precise.type(field.scale)
        if field.offset is not None:
            work += precise.type(field.offset)
        if work is not array:
            array[...] = work

    def _gather(self, field: Field, part: Ids, local: Ids, array: npt.NDArray[Any]) -> None:
        for number, rows in _groups(part):
            with self.activity.doing(partial(self._reading, number, local[rows])):
                self._gather_from(number, field, local, rows, array)

    def _gather_from(
        self, number: int, field: Field, local: Ids, rows: Ids, array: npt.NDArray[Any]
    ) -> None:
        """Gather the rows of one field that lie in file ``number``."""
        column = self._files.column(number, field)
        if column.mapped is not None:
            array[rows] = column.mapped[local[rows]]
            return
        for index, within in _groups(local[rows] // column.block):
            key = (number, field.name, index)
            block = self.cache.get(key, partial(column.load, index))
            places = rows[within]
            array[places] = block[local[places] - index * column.block]

    def _reading(self, number: int, local: Ids) -> str:
        path, first, last = self.parts[number].path, local.min(), local.max()
        return f"reading {path}, {len(local)} of its records {first} to {last}"

    def verify(self, part: int = 0, parts: int = 1) -> list[str]:
        """Check every ``parts``-th file from number ``part`` on; return what is wrong.

        Parameters
        ----------
        part, parts : int
            A rank and the number of ranks, when the ranks share the work.

        Returns
        -------
        list of str
            One sentence for each bad file; empty if all are good.  Gather the lists of
            all ranks and pass them to `verify.refuse`.
        """
        return verify.problems(
            self.parts, self.fields, self.shards, range(part, len(self.parts), parts)
        )

    def close(self) -> None:
        """Close all files and forget all blocks."""
        self._files.close()
        self.cache.clear()


def _groups(keys: Ids) -> Iterator[tuple[int, Ids]]:
    """Yield each distinct key with the positions where it stands."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    cuts = (np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()
    for start, stop in pairwise([0, *cuts, len(keys)]):
        if stop > start:
            yield int(ordered[start]), order[start:stop]
