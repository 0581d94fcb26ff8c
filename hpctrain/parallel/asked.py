"""Rows of tables, between a worker and servers: those that a step reads, and their gradients.

A worker asks for the rows of a batch before it runs, and sends the gradients of the same rows
afterwards. Of all other rows it has older values, which nothing reads: so it does not matter
whether updates move rows that no batch has touched, as momentum and weight decay do.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hpctrain import backend
from hpctrain.comm.bundle import Bundle
from hpctrain.comm.letter import Header, Letter, Op
from hpctrain.comm.post import PUSH, reply_tag
from hpctrain.parallel.flat import FlatParameters, Slice
from hpctrain.parallel.table_slices import TableSlices
from hpctrain.parallel.tables import Table
from hpctrain.parallel.terms import ROWS
from hpctrain.parallel.trade import Trade
from hpctrain.parallel.work import Work

__all__ = ["AskedRows"]

Flat = np.ndarray[Any, np.dtype[Any]]


class _Answer(NamedTuple):
    """Room for rows that a server will send, and which these are."""

    numbers: Flat
    letter: Letter


class AskedRows:
    """The tables of a worker, of those servers with which it shares no memory.

    Parameters
    ----------
    trade : Trade
    buffer : array, shape (total,)
        Where the gradients of this rank are.
    flat : FlatParameters
    found : mapping of int to Table
        By place of the parameter; each has a slice of its own.
    """

    def __init__(
        self, trade: Trade, buffer: Any, flat: FlatParameters, found: Mapping[int, Table]
    ) -> None:
        self._trade, self._post = trade, trade.post
        self._buffer, self._flat = buffer, flat
        self._tables = TableSlices(flat, found)
        self.widths = {place: table.width for place, table in found.items()}
        self._answers: dict[int, list[_Answer]] = {}

    def has(self, index: int, server: int) -> bool:
        """Return whether rows of a slice travel to and from a server."""
        return index in self._tables and self._trade.is_far(server)

    @property
    def slices(self) -> tuple[int, ...]:
        """The slices of the tables."""
        return tuple(self._tables)

    def nbytes(self, index: int) -> int:
        """Return how many bytes this rank and the servers send each other for a slice."""
        return self._tables[index].traded(self._flat.dtype.itemsize)

    def note(self, work: Work, number: int) -> None:
        """Keep the row numbers of a part of step ``number``."""
        self._tables.note(work, number)

    def ask(self, piece: Slice, number: int) -> Bundle:
        """Ask for the rows of a step; what is returned is complete when all have come."""
        return self._ask(piece, self._tables.touched(piece.index, number), number)

    def _ask(self, piece: Slice, numbers: Flat, number: int) -> Bundle:
        handles, letters, answers = [], [], []
        for server, (a, b) in enumerate(self._trade.places[piece.index]):
            if a == b or not self._trade.is_far(server):
                continue
            mine, first = self._mine(piece, server, numbers)
            width = self._tables[piece.index].width
            room = self._post.room(mine.size * width * self._flat.dtype.itemsize)
            handles.append(self._post.receive(room, server, reply_tag(piece.index)))
            letter = self._post.room(mine.nbytes)
            letter.view(np.int64, mine.size)[:] = mine - first
            header = self._header(Op.PULL, piece.index, server, number, mine.size)
            letter.seal(header, self._post.debug)
            handles.append(self._post.send(letter, server, PUSH))
            letters.append(letter)
            answers.append(_Answer(mine, room))
        self._answers[piece.index] = answers
        return Bundle(handles, letters)

    def take(self, piece: Slice) -> None:
        """Bring the rows that have come to their place."""
        width = self._tables[piece.index].width
        rows = self._rows(self._flat.weights, piece)
        xp = backend.module_of(rows)
        for numbers, letter in self._answers.pop(piece.index):
            letter.open(f"rows of slice {piece.index}")
            values = letter.view(self._flat.dtype, numbers.size * width).reshape(-1, width)
            rows[xp.asarray(numbers)] = xp.asarray(values)
            letter.close()

    def flush(self) -> None:
        """Wait until the servers have made the updates of all that was pushed."""
        for index in self._tables:
            piece = self._flat.slices[index]
            self._ask(piece, np.empty(0, np.int64), 0).wait()
            self.take(piece)

    def packed(
        self, piece: Slice, server: int, number: int, share: float, scale: float
    ) -> Letter:
        """Return a letter with the gradients of the rows that a step has touched."""
        touched, table = self._tables.touched(piece.index, number), self._tables[piece.index]
        mine, first = self._mine(piece, server, touched)
        rows = self._rows(self._buffer, piece)
        values = backend.to_host(rows[backend.module_of(rows).asarray(mine)])
        letter = self._post.room(mine.nbytes + values.nbytes)
        letter.view(np.int64, mine.size)[:] = mine - first
        out = letter.view(values.dtype, values.size, mine.nbytes)
        out.reshape(-1, table.width)[...] = values
        header = self._header(Op.PUSH, piece.index, server, number, mine.size)
        header = header._replace(share=share, scale=scale, dtype=values.dtype.char)
        letter.seal(header, self._post.debug)
        return letter

    def forget(self, index: int, number: int) -> None:
        """Forget the row numbers of a step, whose gradients are sent."""
        self._tables.forget(index, number)

    def _header(self, op: int, index: int, server: int, number: int, count: int) -> Header:
        a, b = self._trade.places[index][server]
        kind = self._flat.dtype.char
        return Header(op, index, number, a, b - a, kind, flags=ROWS, number=count)

    def _mine(self, piece: Slice, server: int, numbers: Flat) -> tuple[Flat, int]:
        """Return which of some rows, in ascending order, a server keeps, and its first row."""
        width = self._tables[piece.index].width
        a, b = self._trade.places[piece.index][server]
        first, last = (a - piece.start) // width, (b - piece.start) // width
        start, stop = np.searchsorted(numbers, [first, last])
        return numbers[start:stop], first

    def _rows(self, buffer: Any, piece: Slice) -> Any:
        width = self._tables[piece.index].width
        return self._tables.values(buffer, piece).reshape(-1, width)
