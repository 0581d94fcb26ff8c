"""Sums of arrays that are zero in most rows, like gradients of embeddings: rows travel."""

from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np

from hpctrain.comm.direct import TAGGED_KEYS
from hpctrain.comm.group import Group
from hpctrain.comm.request import Handle
from hpctrain.comm.transfer import Flat, Pending, Pool, Scratch, Steps, Transfer, exchange

__all__ = ["Rows", "rows_bytes"]

_NUMBER = np.dtype(np.int64)


class _Letter(NamedTuple):
    """The memory of a message, and in it the numbers and the values of rows."""

    memory: Flat
    numbers: Flat
    values: Flat


def rows_bytes(rows: int, width: int, itemsize: int, ranks: int) -> int:
    """Return how many bytes a rank sends if it sends so many rows to every other."""
    return (ranks - 1) * rows * (width * itemsize + _NUMBER.itemsize)


class Rows:
    """Sums slices of which every rank has some rows, between pairs.

    Parameters
    ----------
    group : Group
        Used by this alone. All ranks start the same calls in the same order.

    Notes
    -----
    Every rank sends its rows to every other, ``(p - 1) m (w + 8)`` bytes for m rows of w bytes:
    less than all of V rows, ``2 (p - 1) / p V w``, while m is below ``2 V / p``. Where each
    rank needs the sum of a part only, each row goes to one rank: fewer bytes than
    ``(p - 1) / p V w`` while m is below V. Rows are added in the order of the ranks: the same
    bits on all of them, and by both ways.
    """

    def __init__(self, group: Group) -> None:
        self.rank, self.size = group.rank, group.size
        self.pool = Pool()
        self._group = group
        self._under_way: list[Transfer] = []
        self._touched: dict[int, Flat] = {}
        self._dests = [(self.rank + k) % self.size for k in range(1, self.size)]
        self._sources = [(self.rank - k) % self.size for k in range(1, self.size)]

    def allreduce(self, array: Flat, key: int, width: int, numbers: Flat) -> Pending:
        """Sum over all ranks, in place.

        Parameters
        ----------
        array : ndarray, shape (rows * width,), float
            Zero but for the rows in ``numbers``.
        key : int
            One slice is under way once at a time.
        width : int
            Elements of a row.
        numbers : ndarray of int64, shape (m,)
            Each row once, in any order.
        """
        if self.size == 1:
            return Handle()
        return self._start(self._sum(array.reshape(-1, width), key, numbers))

    def reduce_scatter(
        self, array: Flat, key: int, width: int, numbers: Flat, parts: Sequence[tuple[int, int]]
    ) -> Pending:
        """Sum over all ranks; each rank's part of ``array`` then holds the sums.

        Parameters
        ----------
        array, key, width
            As for `allreduce`; what lies outside the part is undefined afterwards.
        numbers : ndarray of int64, shape (m,)
            Each row once, ascending.
        parts : sequence of (start, stop), one for each rank
            Elements; they may begin and end inside a row, which then goes to two ranks.
        """
        if self.size == 1:
            return Handle()
        spans = [(a // width, -(-b // width) if a < b else a // width) for a, b in parts]
        return self._start(self._scatter(array.reshape(-1, width), key, numbers, spans))

    def allgather(self, array: Flat, key: int, width: int) -> Pending:
        """Bring the rows that `reduce_scatter` has summed last to all ranks, bit by bit.

        Parameters
        ----------
        array : ndarray, shape (rows * width,)
            Equal on all ranks but for these rows.
        key, width : int
            As for `reduce_scatter`, whose parts must have been whole rows.
        """
        if self.size == 1:
            return Handle()
        return self._start(self._spread(array.reshape(-1, width), key))

    def _start(self, steps: Steps) -> Transfer:
        return Transfer(steps, self._under_way)

    def _sum(self, rows: Flat, key: int, numbers: Flat) -> Steps:
        scratch = Scratch(self.pool)
        mine = self._packed(scratch, rows, numbers)
        letters = yield from self._swap([mine] * self.size, rows, key, scratch)
        self._add_up(rows, letters)
        scratch.close()

    def _scatter(
        self, rows: Flat, key: int, numbers: Flat, spans: Sequence[tuple[int, int]]
    ) -> Steps:
        scratch = Scratch(self.pool)
        cuts = np.searchsorted(numbers, spans)
        mine = [self._packed(scratch, rows, numbers[a:b]) for a, b in cuts]
        letters = yield from self._swap(mine, rows, key, scratch)
        self._add_up(rows, letters)
        self._touched[key] = np.unique(np.concatenate([letter.numbers for letter in letters]))
        scratch.close()

    def _spread(self, rows: Flat, key: int) -> Steps:
        scratch = Scratch(self.pool)
        mine = self._packed(scratch, rows, self._touched.pop(key))
        letters = yield from self._swap([mine] * self.size, rows, key, scratch)
        for rank in self._sources:
            rows[letters[rank].numbers] = letters[rank].values
        scratch.close()

    def _add_up(self, rows: Flat, letters: Sequence[_Letter]) -> None:
        rows[letters[self.rank].numbers] = 0
        for letter in letters:
            rows[letter.numbers] += letter.values

    def _swap(
        self, mine: Sequence[_Letter], rows: Flat, key: int, scratch: Scratch
    ) -> Generator[Pending, None, list[_Letter]]:
        """Send each rank its letter and return those for this one, the own among them."""
        sizes = np.array([[letter.numbers.size] for letter in mine], _NUMBER)
        counts = sizes.copy()
        tag, what = 2 * (key % TAGGED_KEYS), f"rows of slice {key}"
        yield exchange(
            self._group,
            f"number of {what}",
            [(rank, counts[rank]) for rank in self._sources],
            [(rank, sizes[rank]) for rank in self._dests],
            tag,
        )
        letters = [
            mine[rank] if rank == self.rank else self._letter(scratch, int(n), rows)
            for rank, n in enumerate(counts[:, 0])
        ]
        yield exchange(
            self._group,
            what,
            [(rank, letters[rank].memory) for rank in self._sources],
            [(rank, mine[rank].memory) for rank in self._dests],
            tag + 1,
        )
        return letters

    def _packed(self, scratch: Scratch, rows: Flat, numbers: Flat) -> _Letter:
        letter = self._letter(scratch, numbers.size, rows)
        letter.numbers[...] = numbers
        np.take(rows, numbers, axis=0, out=letter.values, mode="clip")
        return letter

    def _letter(self, scratch: Scratch, count: int, rows: Flat) -> _Letter:
        width = rows.shape[1]
        cut = count * _NUMBER.itemsize
        memory = scratch.array(cut + count * width * rows.itemsize, np.uint8)
        values = memory[cut:].view(rows.dtype).reshape(count, width)
        return _Letter(memory, memory[:cut].view(_NUMBER), values)
