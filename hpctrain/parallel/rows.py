"""Gradients of embeddings: only the rows that a batch has touched are exchanged.

Where each rank updates a part of a table, a row goes to the rank that has it. What comes back
are the same rows, if the update changes no others, and else the parts as of any slice.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hpctrain.comm.compress import Codec
from hpctrain.comm.group import Group
from hpctrain.comm.link import bytes_sent
from hpctrain.comm.rows import Rows, rows_bytes
from hpctrain.comm.transfer import Pending
from hpctrain.graph.plan import Plan
from hpctrain.graph.rows import rows_of_outputs
from hpctrain.optim import Optimizer
from hpctrain.parallel.flat import FlatParameters, Slice
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.ways import Way
from hpctrain.parallel.work import Work

__all__ = ["RowSlices", "Table", "tables"]

FIRST_GRADIENT = 2  # outputs of a training plan: losses, right answers, gradients


class Table(NamedTuple):
    """A trained parameter whose gradient has few rows.

    Attributes
    ----------
    source : int
        Position among the inputs and targets of a batch of the array of row numbers.
    height, width : int
        How many rows there are, and elements of a row.
    touched : int
        How many rows a rank sends, at most, of a batch as it is first.
    parts : tuple of (start, stop)
        The elements that each rank updates; empty if every rank updates all.
    back : bool
        Whether rows are what comes back of the update of a part; parts are whole rows then.
    """

    source: int
    height: int
    width: int
    touched: int
    parts: tuple[tuple[int, int], ...] = ()
    back: bool = False

    def nbytes(self, itemsize: int, ranks: int) -> int:
        """Return how many bytes a rank sends, if what it touches is spread over the parts."""
        to_all = rows_bytes(self.touched, self.width, itemsize, ranks)
        if not self.parts:
            return to_all
        whole = bytes_sent(self.height * self.width * itemsize, ranks)
        return to_all // ranks + (to_all if self.back else whole // 2)

    def whole(self, itemsize: int, ranks: int, codec: Codec | None = None) -> int:
        """Return how many bytes a rank sends without regard to rows."""
        count = self.height * self.width
        plain = bytes_sent(count * itemsize, ranks)
        if codec is None:
            return plain
        coded = bytes_sent(codec.nbytes(count), ranks)
        return (coded + plain) // 2 if self.parts else coded

    def by_rows(self) -> "Table":
        """Return the table with parts of whole rows, of which touched ones come back."""
        ranks = len(self.parts)
        edges = [self.height * rank // ranks * self.width for rank in range(ranks + 1)]
        return self._replace(parts=tuple(pairwise(edges)), back=True)


def tables(
    group: Group, plan: Plan, state: ModelState, optimizer: Optimizer, way: Way, sharded: bool
) -> dict[int, Table]:
    """Return the parameters, by place, whose gradients travel in fewer bytes as rows.

    Collective; all ranks get what holds for rank 0.

    Parameters
    ----------
    group : Group
    plan : Plan
    state : ModelState
    optimizer : Optimizer
        Tells whether rows that no rank has touched change.
    way : Way
    sharded : bool
        Whether each rank updates a part.
    """
    if way.rows is None or way.transport is None:
        return {}
    flat, p, decay, factors = state.flat, group.size, optimizer.weight_decay, state.factors()
    ends, itemsize, found = [*flat.offsets[1:], flat.total], flat.dtype.itemsize, {}
    for place, *numbers in group.bcast_obj(_tall(plan, flat), 0):
        table = Table(*numbers)
        if sharded:
            size = flat.sizes[place]
            mine = way.transport.part(ends[place] - flat.offsets[place])
            parts = group.allgather_obj([min(mine.start, size), min(mine.stop, size)])
            table = table._replace(parts=tuple((a, b) for a, b in parts))
            if optimizer.rests(decay * factors[place][1]):
                table = min(table, table.by_rows(), key=lambda t: t.nbytes(itemsize, p))
        if table.nbytes(itemsize, p) < table.whole(itemsize, p, way.codec):
            found[place] = table
    return found


def _tall(plan: Plan, flat: FlatParameters) -> list[tuple[int, ...]]:
    """Return the place of each parameter that might be a table, and the numbers of `Table`."""
    graph = plan.graph
    found: list[tuple[int, ...]] = []
    for position, source in rows_of_outputs(plan).items():
        place = position - FIRST_GRADIENT
        if place >= 0:
            height = flat.tensors[place].shape[0]
            width = flat.sizes[place] // max(height, 1)
            touched = min(graph.specs[graph.inputs[source]].size, height)
            found.append((place, source, height, width, touched))
    return found


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
