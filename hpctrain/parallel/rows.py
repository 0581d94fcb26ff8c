"""Gradients of embeddings: only the rows that a batch has touched are exchanged.

Where each rank updates a part of a table, a row goes to the rank that has it. What comes back
are the same rows, if the update changes no others, and else the parts as of any slice.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpctrain.comm.rows import Rows
from hpctrain.comm.transfer import Pending
from hpctrain.parallel.flat import FlatParameters, Slice
from hpctrain.parallel.tables import Table
from hpctrain.parallel.work import Work

__all__ = ["RowSlices"]


class RowSlices:
    """Exchanges slices that hold a table each.

    Parameters
    ----------
    transport : Rows
    buffer : array, shape (total,), on the host
        Where the gradients of this rank are.
    flat : FlatParameters
    found : mapping of int to Table
        By place of the parameter; each has a slice of its own.
    """

    def __init__(
        self, transport: Rows, buffer: Any, flat: FlatParameters, found: Mapping[int, Table]
    ) -> None:
        self._transport = transport
        self._buffer, self._flat = buffer, flat
        alone = {s.parameters[0]: s.index for s in flat.slices if len(s.parameters) == 1}
        self._tables = {alone[place]: table for place, table in found.items()}
        self._numbers: dict[tuple[int, int], list[Any]] = {}

    def __contains__(self, index: int) -> bool:
        return index in self._tables

    def nbytes(self, index: int) -> int:
        """Return how many bytes a rank sends for a slice."""
        return self._tables[index].nbytes(self._buffer.dtype.itemsize, self._transport.size)

    def come_back(self, index: int) -> bool:
        """Return whether rows of a slice are to be gathered, and `own` says what is updated."""
        return index in self._tables and self._tables[index].back

    def own(self, piece: Slice) -> tuple[int, int]:
        """Return the elements of the flat buffers that this rank updates."""
        start, stop = self._tables[piece.index].parts[self._transport.rank]
        return piece.start + start, piece.start + stop

    def note(self, work: Work, number: int) -> None:
        """Keep the row numbers of a part of step ``number``."""
        arrays = (*work.inputs, *work.targets)
        for index, table in self._tables.items():
            touched = np.unique(np.asarray(arrays[table.source]).reshape(-1))
            self._numbers.setdefault((index, number), []).append(touched.astype(np.int64))

    def begin(self, piece: Slice, number: int) -> Pending:
        """Start to sum the rows of a slice that any part of step ``number`` has touched."""
        noted = self._numbers.pop((piece.index, number), [])
        numbers = np.unique(np.concatenate(noted)) if noted else np.empty(0, np.int64)
        table = self._tables[piece.index]
        what = self._of(self._buffer, piece), piece.index, table.width, numbers
        if table.parts:
            return self._transport.reduce_scatter(*what, table.parts)
        return self._transport.allreduce(*what)

    def gather(self, piece: Slice) -> Pending:
        """Start to fetch the rows that others have updated since `begin`."""
        width = self._tables[piece.index].width
        return self._transport.allgather(
            self._of(self._flat.weights, piece), piece.index, width
        )

    def _of(self, buffer: Any, piece: Slice) -> Any:
        """Return the rows of a slice, without what fills it up."""
        table = self._tables[piece.index]
        return buffer[piece.start : piece.start + table.height * table.width]
