"""Gradients that come to a server: as they are, encoded, or in memory of the worker."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.comm.compress import Codec
from hpctrain.comm.wire import sum_in_order
from hpctrain.parallel.flat import FlatParameters
from hpctrain.parallel.near import NEAR, Near
from hpctrain.parallel.served_rows import ServedRows
from hpctrain.parallel.terms import ROWS, Push, Terms

__all__ = ["Gradient", "Intake"]


class Intake:
    """Sums what workers push, and knows where it lies.

    Parameters
    ----------
    flat : FlatParameters
        Of the server: sums are left in its gradients.
    dtype : dtype
        In which gradients travel and are summed.
    spans : sequence of (start, stop)
        By slice the part of this server.
    terms : Terms
    near : Near
    widths : mapping of int to int, optional
        By slice of a table the length of its rows.

    Attributes
    ----------
    coded : bool
    rows : ServedRows
    """

    def __init__(
        self,
        flat: FlatParameters,
        dtype: Any,
        spans: Sequence[tuple[int, int]],
        terms: Terms,
        near: Near,
        widths: Mapping[int, int] | None = None,
    ) -> None:
        self._flat, self._spans, self._near = flat, spans, near
        self._sums = flat.grads if dtype == flat.dtype else np.zeros(flat.total, dtype)
        self._terms = terms
        self._codecs: list[Codec | None] = [terms.codec()]
        self.coded = self._codecs[0] is not None
        self.rows = ServedRows(widths or {}, spans, self._sums, not near.workers)

    def exact(self, index: int) -> int:
        """Return how many elements at the head of a part are riders."""
        a, b = self._spans[index]
        return len(self._flat.riders) if index == 0 and a == 0 and b > 0 else 0

    def gradient(self, index: int, pushes: Sequence[Push]) -> "Gradient":
        """Return the sum of the gradients of some pushes, in their order.

        Its riders are summed at once; the rest when it is used, if nothing is encoded. Until
        then the letters must stay open.
        """
        self._ride(index, pushes)
        if index in self.rows:
            near = [self._body(push)[0] for push in pushes if not push.header.flags & ROWS]
            a, b = self._spans[index]
            rows = [push for push in pushes if push.header.flags & ROWS]
            self.rows.add_up(index, rows, [grads[a:b] for grads in near])
            return Gradient(self._flat, self._sums, [])
        if self.coded:
            self._decode(index, pushes)
            return Gradient(self._flat, self._sums, [])
        return Gradient(self._flat, self._sums, [self._body(push) for push in pushes])

    def add_up(self, index: int, pushes: Sequence[Push]) -> None:
        """Leave the sum of the gradients of some pushes in the server's gradients."""
        gradient, (a, b) = self.gradient(index, pushes), self._spans[index]
        gradient.stay(a + self.exact(index), b)

    def there(self) -> "Gradient":
        """Return what `add_up` has left."""
        return Gradient(self._flat, self._flat.grads, [])

    def _body(self, push: Push) -> tuple[Any, int]:
        """Return a gradient that is not encoded, and which element is its first."""
        if push.header.flags & NEAR:
            return self._near.grads(push.source), 0
        a, b = self._spans[push.header.key]
        return push.letter.view(self._sums.dtype, b - a), a

    def _ride(self, index: int, pushes: Sequence[Push]) -> None:
        """Sum the riders, which are never encoded."""
        exact = self.exact(index)
        if not exact:
            return
        total = np.zeros(exact, self._sums.dtype)
        with np.errstate(all="ignore"):  # a loss may be infinite
            for push in pushes:
                near = push.header.flags & NEAR
                total += (
                    self._near.grads(push.source)[:exact]
                    if near
                    else push.letter.view(total.dtype, exact)
                )
        self._sums[:exact] = total
        self._flat.grads[:exact] = total

    def _decode(self, index: int, pushes: Sequence[Push]) -> None:
        codec, (a, b) = self.take(), self._spans[index]
        out = self._sums[a + self.exact(index) : b]
        head = self.exact(index) * out.itemsize
        with np.errstate(all="ignore"):  # what is not finite is found by who looks for it
            for place, push in enumerate(pushes):
                data = push.letter.body[head : head + codec.nbytes(out.size)]
                (codec.add if place else codec.decode)(data, out)
        self.give(codec)

    def take(self) -> Codec:
        """Take a codec that nobody uses."""
        try:
            codec = self._codecs.pop()
        except IndexError:
            codec = self._terms.codec()
        assert codec is not None, "letters are encoded"
        return codec

    def give(self, codec: Codec) -> None:
        """Give back what `take` returned."""
        self._codecs.append(codec)


class Gradient:
    """A sum of gradients, which is made where it is used, so that it need not be stored.

    Parameters
    ----------
    flat : FlatParameters
    sums : array, shape (total,)
        Where sums are made.
    terms : list of (array, int)
        Gradients, and which element is the first of each; none if the sum is made already.
    """

    def __init__(self, flat: FlatParameters, sums: Any, terms: list[tuple[Any, int]]) -> None:
        self._grads, self._sums, self._terms = flat.grads, sums, terms

    def of(self, a: int, b: int) -> list[Any]:
        """Return arrays whose sum, in this order, are elements a up to b; not to be changed."""
        if not self._terms or self._sums is not self._grads:
            return [self.stay(a, b)]
        return self._parts(a, b)

    def stay(self, a: int, b: int) -> Any:
        """Return elements a up to b, which stay in the server's gradients."""
        out, parts = self._sums[a:b], self._parts(a, b)
        if len(parts) > 1:
            sum_in_order(parts, out, 0, partial=out)
        elif parts:
            out[...] = parts[0]
        if self._sums is not self._grads:
            self._grads[a:b] = out
        return self._grads[a:b]

    def _parts(self, a: int, b: int) -> list[Any]:
        return [array[a - first : b - first] for array, first in self._terms]
