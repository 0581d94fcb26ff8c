"""How elements of a slice become a message, and the messages of all ranks a sum.

A message carries the *head*, elements that every rank sums exactly, and a *body*: the elements
of a *span* of the slice, whose sum one rank makes.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from hpctrain.comm.transfer import Flat, Scratch


class Work(NamedTuple):
    """A slice under way: its elements, its name, the length of its head, scratch memory."""

    array: Flat
    key: int
    exact: int
    scratch: Scratch


class Packet(NamedTuple):
    """One message: ``data`` as MPI sees it, and views of its head and body."""

    data: Flat
    head: Flat
    body: Flat


class Wire(Protocol):
    """Turns spans of a slice into messages, and back.

    Attributes
    ----------
    lossy : bool
        Whether a body differs from the elements that it stands for.
    """

    lossy: bool

    def nbytes(self, count: int, itemsize: int) -> int:
        """Return how many bytes a body of ``count`` elements takes."""

    def own(self, work: Work, span: slice) -> Packet:
        """Return what this rank itself adds to the sum of ``span``."""

    def pack(self, work: Work, span: slice) -> Packet:
        """Return the message to the rank that makes the sum of ``span``."""

    def room(self, work: Work, span: slice) -> Packet:
        """Return the place for such a message from another rank."""

    def add_up(self, work: Work, packets: Sequence[Packet], span: slice, rank: int) -> None:
        """Overwrite ``span`` by the sum of the bodies of all ranks, in their order.

        ``rank`` is this one, whose packet comes from `own`.
        """

    def landing(self, work: Work, span: slice) -> Flat:
        """Return the place of the message that tells the sum of ``span`` to all ranks."""

    def announce(self, work: Work, data: Flat, span: slice) -> None:
        """Make that message, in its place, of the sum in ``span``."""

    def land(self, work: Work, data: Flat, span: slice) -> None:
        """Bring such a message into ``span``."""


class Plain:
    """Elements as they are.

    Nothing is copied before it is sent unless a head travels with it, and nothing after it has
    come but by the sum.
    """

    lossy = False

    def nbytes(self, count: int, itemsize: int) -> int:
        """Return how many bytes a body of ``count`` elements takes."""
        return count * itemsize

    def own(self, work: Work, span: slice) -> Packet:
        """Return the elements where they lie; as a message it has no head."""
        body = work.array[span]
        return Packet(body, work.array[: work.exact], body)

    def pack(self, work: Work, span: slice) -> Packet:
        """Return the elements where they lie, or a copy of head and body."""
        if not work.exact:
            return self.own(work, span)
        packet = self.room(work, span)
        packet.head[:] = work.array[: work.exact]
        packet.body[:] = work.array[span]
        return packet

    def room(self, work: Work, span: slice) -> Packet:
        """Return scratch memory for head and body."""
        count = work.exact + span.stop - span.start
        data = work.scratch.array(count, work.array.dtype)
        return Packet(data, data[: work.exact], data[work.exact :])

    def add_up(self, work: Work, packets: Sequence[Packet], span: slice, rank: int) -> None:
        """Overwrite ``span`` by the sum of the bodies."""
        bodies = [packet.body for packet in packets]
        sum_in_order(bodies, work.array[span], rank, partial=bodies[0])

    def landing(self, work: Work, span: slice) -> Flat:
        """Return the span itself."""
        return work.array[span]

    def announce(self, work: Work, data: Flat, span: slice) -> None:
        """Do nothing: the message is the span."""

    def land(self, work: Work, data: Flat, span: slice) -> None:
        """Do nothing: it has come to its place."""


def sum_in_order(terms: Sequence[Flat], out: Flat, rank: int, partial: Flat) -> None:
    """Overwrite ``out`` by ``terms[0] + terms[1] + …``, added in this order.

    Parameters
    ----------
    terms : sequence of ndarray
        At least two.
    out : ndarray
        May be ``terms[rank]``, and no other.
    rank : int
        From this term on, partial sums are kept in ``out``.
    partial : ndarray
        Keeps them before; may be ``terms[0]``.
    """
    total = terms[0]
    with np.errstate(all="ignore"):  # what is not finite is for the check of the whole step
        for place, term in enumerate(terms[1:], 1):
            total = np.add(total, term, out=out if place >= rank else partial)
