"""What happens to a slice of the gradient: one interface, `begin` and `finish`.

``begin(slice)`` starts the exchange and returns at once, ``finish(slice)`` returns when the
slice holds what the update needs. Slices are begun in one order, the same on every rank.
"""

from typing import Any, Protocol

from hpctrain.comm.group import Group
from hpctrain.comm.request import Handle
from hpctrain.parallel.flat import Slice

__all__ = ["AllReduce", "Alone", "Exchange"]


class Exchange(Protocol):
    """Turns each rank's part of a gradient slice into the gradient of the global batch."""

    def begin(self, piece: Slice) -> None:
        """Start exchanging ``piece``."""

    def finish(self, piece: Slice) -> None:
        """Wait until ``piece`` is ready for the update."""


class Alone:
    """One rank: there is nothing to exchange."""

    def begin(self, piece: Slice) -> None:
        """Do nothing."""

    def finish(self, piece: Slice) -> None:
        """Do nothing."""


class AllReduce:
    """Sum over the ranks of a group, in place; every rank then makes the same update.

    Parameters
    ----------
    group : Group
        Used by this exchange alone.
    grads : array, shape (total,)
        The flat gradient buffer of this rank.
    pause_s : float
        How to wait; see `hpctrain.comm.request.Handle.wait`.

    Notes
    -----
    Sends about ``2 (p - 1) / p`` times the bytes of a slice, as MPI chooses.
    """

    def __init__(self, group: Group, grads: Any, pause_s: float = 0.0) -> None:
        self._group = group
        self._pause_s = pause_s
        self._grads = grads
        self._under_way: dict[int, Handle] = {}

    def begin(self, piece: Slice) -> None:
        """Post a non-blocking allreduce."""
        part = self._grads[piece.start : piece.stop]
        self._under_way[piece.index] = self._group.iallreduce(part)

    def finish(self, piece: Slice) -> None:
        """Wait for it."""
        self._under_way.pop(piece.index).wait(self._pause_s)
