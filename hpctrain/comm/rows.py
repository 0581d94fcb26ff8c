"""Sums of arrays that are zero in most rows, like gradients of embeddings: rows travel."""

import numpy as np

from hpctrain.comm.direct import TAGGED_KEYS
from hpctrain.comm.group import Group
from hpctrain.comm.request import Handle
from hpctrain.comm.transfer import Flat, Pending, Pool, Scratch, Steps, Transfer, exchange

__all__ = ["Rows", "rows_bytes"]

_NUMBER = np.dtype(np.int64)


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
    less than all of V rows, ``2 (p - 1) / p V w``, while m is below ``2 V / p``. Rows are added
    in the order of the ranks: the same bits on all of them.
    """

    def __init__(self, group: Group) -> None:
        self.rank, self.size = group.rank, group.size
        self.pool = Pool()
        self._group = group
        self._under_way: list[Transfer] = []
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
        steps = self._steps(array.reshape(-1, width), key, numbers, Scratch(self.pool))
        return Transfer(steps, self._under_way)

    def _steps(self, rows: Flat, key: int, numbers: Flat, scratch: Scratch) -> Steps:
        counts = np.zeros((self.size, 1), _NUMBER)
        counts[self.rank] = numbers.size
        tag, what = 2 * (key % TAGGED_KEYS), f"rows of slice {key}"
        yield exchange(
            self._group,
            f"number of {what}",
            [(rank, counts[rank]) for rank in self._sources],
            [(rank, counts[self.rank]) for rank in self._dests],
            tag,
        )
        letters = [self._letter(scratch, int(n), rows) for n in counts[:, 0]]
        _, mine, values = letters[self.rank]
        mine[...] = numbers
        np.take(rows, numbers, axis=0, out=values, mode="clip")
        yield exchange(
            self._group,
            what,
            [(rank, letters[rank][0]) for rank in self._sources],
            [(rank, letters[self.rank][0]) for rank in self._dests],
            tag + 1,
        )
        rows[mine] = 0
        for _, places, values in letters:
            rows[places] += values
        scratch.close()

    def _letter(self, scratch: Scratch, count: int, rows: Flat) -> tuple[Flat, Flat, Flat]:
        """Return the memory of a message, and in it the numbers and the values of rows."""
        width = rows.shape[1]
        cut = count * _NUMBER.itemsize
        memory = scratch.array(cut + count * width * rows.itemsize, np.uint8)
        values = memory[cut:].view(rows.dtype).reshape(count, width)
        return memory, memory[:cut].view(_NUMBER), values
