"""Slices that hold a table each, and which of its rows a step touches."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hpctrain.parallel.flat import FlatParameters, Slice
from hpctrain.parallel.tables import Table
from hpctrain.parallel.work import Work

__all__ = ["TableSlices"]

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class TableSlices:
    """The tables by slice, with the row numbers of the steps that are under way.

    Parameters
    ----------
    flat : FlatParameters
    found : mapping of int to Table
        By place of the parameter; each has a slice of its own.
    """

    def __init__(self, flat: FlatParameters, found: Mapping[int, Table]) -> None:
        alone = {s.parameters[0]: s.index for s in flat.slices if len(s.parameters) == 1}
        self._tables = {alone[place]: table for place, table in found.items()}
        self._noted: dict[tuple[int, int], list[Numbers]] = {}

    def __contains__(self, index: int) -> bool:
        return index in self._tables

    def __getitem__(self, index: int) -> Table:
        return self._tables[index]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._tables))

    def note(self, work: Work, number: int) -> None:
        """Keep the row numbers of a part of step ``number``."""
        arrays = (*work.inputs, *work.targets)
        for index, table in self._tables.items():
            touched = np.unique(np.asarray(arrays[table.source]).reshape(-1))
            self._noted.setdefault((index, number), []).append(touched.astype(np.int64))

    def touched(self, index: int, number: int) -> Numbers:
        """Return the rows that any part of a step touches: each once, ascending."""
        parts = self._noted.get((index, number), [])
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def forget(self, index: int, number: int) -> None:
        """Forget the row numbers of a step, whose gradients are on their way."""
        self._noted.pop((index, number), None)

    def values(self, buffer: Any, piece: Slice) -> Any:
        """Return the elements of a table in a flat buffer, without what fills its slice up."""
        table = self._tables[piece.index]
        return buffer[piece.start : piece.start + table.height * table.width]
