"""Gradients of embeddings: only the rows that a batch has touched are exchanged."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.comm.link import bytes_sent
from hpctrain.comm.rows import Rows, rows_bytes
from hpctrain.comm.transfer import Pending
from hpctrain.graph.plan import Plan
from hpctrain.graph.rows import rows_of_outputs
from hpctrain.parallel.flat import FlatParameters, Slice
from hpctrain.parallel.work import Work

__all__ = ["RowSlices", "Table", "tables"]

FIRST_GRADIENT = 2  # outputs of a training plan: losses, right answers, gradients


class Table(NamedTuple):
    """A trained parameter whose gradient has few rows.

    Attributes
    ----------
    source : int
        Position among the inputs and targets of a batch of the array of row numbers.
    width : int
        Elements of a row.
    touched : int
        How many rows a rank sends, at most, of a batch as it is first.
    """

    source: int
    width: int
    touched: int


def tables(group: Group, plan: Plan, flat: FlatParameters) -> dict[int, Table]:
    """Return the parameters, by place, whose gradients travel in fewer bytes as rows.

    Collective; all ranks get what holds for rank 0.
    """
    found = {}
    graph, p = plan.graph, group.size
    for position, source in rows_of_outputs(plan).items():
        place = position - FIRST_GRADIENT
        if place < 0:
            continue
        height, itemsize = flat.tensors[place].shape[0], flat.dtype.itemsize
        touched = min(graph.specs[graph.inputs[source]].size, height)
        width = flat.sizes[place] // max(height, 1)
        whole = bytes_sent(flat.sizes[place] * itemsize, p)
        if rows_bytes(touched, width, itemsize, p) < whole:
            found[place] = [source, width, touched]
    told = group.bcast_obj(list(found.items()), 0)
    return {place: Table(*table) for place, table in told}


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
        self._buffer = buffer
        alone = {s.parameters[0]: s.index for s in flat.slices if len(s.parameters) == 1}
        self._tables = {alone[place]: table for place, table in found.items()}
        self._sizes = {alone[place]: flat.sizes[place] for place in found}
        self._numbers: dict[tuple[int, int], list[Any]] = {}

    def __contains__(self, index: int) -> bool:
        return index in self._tables

    def nbytes(self, index: int) -> int:
        """Return how many bytes a rank sends for a slice."""
        _, width, touched = self._tables[index]
        return rows_bytes(touched, width, self._buffer.dtype.itemsize, self._transport.size)

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
        array = self._buffer[piece.start : piece.start + self._sizes[piece.index]]
        width = self._tables[piece.index].width
        return self._transport.allreduce(array, piece.index, width, numbers)
