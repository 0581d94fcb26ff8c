"""Gradients of embeddings: only the rows that a batch has touched are exchanged.

Where each rank updates a part of a table, a row goes to the rank that has it. What comes back
are the same rows, if the update changes no others, and else the parts as of any slice.
"""

from collections.abc import Mapping
from typing import Any

from hpctrain.comm.rows import Rows
from hpctrain.comm.transfer import Pending
from hpctrain.parallel.flat import FlatParameters, Slice
from hpctrain.parallel.table_slices import TableSlices
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
        self._tables = TableSlices(flat, found)

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
        self._tables.note(work, number)

    def begin(self, piece: Slice, number: int) -> Pending:
        """Start to sum the rows of a slice that any part of step ``number`` has touched."""
        numbers = self._tables.touched(piece.index, number)
        self._tables.forget(piece.index, number)
        table = self._tables[piece.index]
        grads = self._tables.values(self._buffer, piece)
        what = grads, piece.index, table.width, numbers
        if table.parts:
            return self._transport.reduce_scatter(*what, table.parts)
        return self._transport.allreduce(*what)

    def gather(self, piece: Slice) -> Pending:
        """Start to fetch the rows that others have updated since `begin`."""
        weights = self._tables.values(self._flat.weights, piece)
        return self._transport.allgather(weights, piece.index, self._tables[piece.index].width)
