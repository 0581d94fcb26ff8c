"""Rows of tables on a server: gradients that come by rows, and rows that are asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.comm.letter import Header, Letter, Op
from hpctrain.comm.post import Post
from hpctrain.errors import CommError
from hpctrain.optim import Optimizer
from hpctrain.parallel.terms import Push

__all__ = ["ServedRows"]

Flat = np.ndarray[Any, np.dtype[Any]]
_NUMBER = np.dtype(np.int64)


class ServedRows:
    """The parts of tables that a server keeps.

    Methods on one slice run one at a time; those on different slices may run together.

    Parameters
    ----------
    widths : mapping of int to int
        By slice the length of its rows; slices that are no tables are not in it.
    spans : sequence of (start, stop)
        By slice the part of this server: whole rows, but for what fills the last one up.
    sums : array, shape (total,)
        Where sums of gradients are made; zero at first.
    few : bool
        Whether all gradients come by rows, so that no others differ from zero.
    """

    def __init__(
        self,
        widths: Mapping[int, int],
        spans: Sequence[tuple[int, int]],
        sums: Flat,
        few: bool,
    ) -> None:
        self._widths, self._spans, self._sums, self._few = widths, spans, sums, few
        self._touched: dict[int, Flat] = {}

    def __contains__(self, index: int) -> bool:
        return index in self._widths

    def add_up(self, index: int, pushes: Sequence[Push], others: Sequence[Flat]) -> None:
        """Leave a sum of gradients where sums are made.

        Parameters
        ----------
        index : int
        pushes : sequence of Push
            Numbers and gradients of rows; each number once in a letter.
        others : sequence of array
            Gradients of all elements of the part.
        """
        a, b = self._spans[index]
        out, before = self._sums[a:b], self._touched.get(index)
        rows = self._rows(out, index)
        if not self._few:
            out[...] = 0
        elif before is not None:
            rows[before] = 0
        with np.errstate(all="ignore"):  # what is not finite is found by who looks for it
            for other in others:
                out += other
            found = []
            for push in pushes:
                numbers = self._numbers(index, push)
                count, width = numbers.size, rows.shape[1]
                values = push.letter.view(out.dtype, count * width, numbers.nbytes)
                rows[numbers] += values.reshape(count, width)
                found.append(numbers)
        self._touched[index] = np.unique(np.concatenate(found)) if found else np.arange(0)

    def rest(self, index: int) -> bool:
        """Return whether it is known of some rows that their gradients are zero."""
        return self._few and index in self._touched

    def update(
        self, index: int, optimizer: Optimizer, weights: Flat, numbers: Mapping[str, Any]
    ) -> None:
        """Update the rows that `add_up` has touched, where the optimizer lets all others rest.

        ``weights`` is the whole buffer; ``numbers`` go to `Optimizer.update`.
        """
        a, b = self._spans[index]
        touched, table = self._touched[index], self._rows(weights[a:b], index)
        some = table[touched].reshape(-1)
        grad = self._rows(self._sums[a:b], index)[touched].reshape(-1).astype(some.dtype)
        optimizer.update(some, grad, {}, weight_decay=0.0, **numbers)
        table[touched] = some.reshape(-1, table.shape[1])

    def wanted(self, index: int, push: Push, weights: Flat, post: Post) -> Letter:
        """Return a letter with the rows that another asks for, and close that one."""
        (a, b), kind = self._spans[index], weights.dtype
        numbers, table = self._numbers(index, push), self._rows(weights[a:b], index)
        found = post.room(numbers.size * table.shape[1] * kind.itemsize)
        out = found.view(kind, numbers.size * table.shape[1]).reshape(-1, table.shape[1])
        np.take(table, numbers, axis=0, out=out, mode="clip")
        push.letter.close()
        header = Header(Op.VALUE, index, push.header.version, a, b - a, kind.char)
        found.seal(header, post.debug)
        return found

    def _rows(self, part: Flat, index: int) -> Flat:
        width = self._widths[index]
        return part[: part.size // width * width].reshape(-1, width)

    def _numbers(self, index: int, push: Push) -> Flat:
        """Return the row numbers of a letter, counted from the first row of the part."""
        a, b = self._spans[index]
        count, rows = push.header.number, (b - a) // self._widths[index]
        room = push.letter.nbytes
        if not 0 <= count * _NUMBER.itemsize <= room:
            raise CommError(f"server: got {count} rows in a letter of {room} bytes")
        numbers = push.letter.view(_NUMBER, count)
        if count and not (numbers.min() >= 0 and numbers.max() < rows):
            raise CommError(
                f"server: got rows {numbers.min()} to {numbers.max()} of slice {index}, needed "
                f"numbers from 0 to {rows - 1}; start all ranks with the same command"
            )
        return numbers
