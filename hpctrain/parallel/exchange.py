"""What happens to a slice of the gradient, and of the parameters if ranks share their update.

``begin(slice)`` starts the exchange and returns what can be asked whether it is done; then the
slice holds what the update needs. Slices are begun in one order, the same on every rank.
"""

from typing import Any, Protocol

import numpy as np

from hpctrain import backend
from hpctrain.comm.transfer import Pending
from hpctrain.comm.transport import Transport
from hpctrain.parallel.flat import FlatParameters, Slice

__all__ = ["Alone", "Exchange", "Shared", "Summed"]


class Exchange(Protocol):
    """Turns each rank's part of a gradient slice into the gradient of the global batch."""

    def begin(self, piece: Slice) -> Pending | None:
        """Start exchanging ``piece``; None if there is nothing to wait for."""

    def own(self, piece: Slice) -> tuple[int, int]:
        """Return the elements of the flat buffers that this rank updates of ``piece``."""

    def gather(self, piece: Slice) -> Pending | None:
        """Start to fetch what others have updated of ``piece``."""

    def rescale(self, factor: float) -> None:
        """Note that gradients will be ``factor`` times as large; with nothing under way."""


class Alone:
    """One rank: there is nothing to exchange."""

    def begin(self, piece: Slice) -> Pending | None:
        """Do nothing."""
        return None

    def own(self, piece: Slice) -> tuple[int, int]:
        """Return all of ``piece``."""
        return piece.start, piece.stop

    def gather(self, piece: Slice) -> Pending | None:
        """Do nothing."""
        return None

    def rescale(self, factor: float) -> None:
        """Do nothing."""


class Summed:
    """Every rank gets the sum over all ranks, in place, and makes the same update.

    Parameters
    ----------
    transport : Transport
        Used by this exchange alone.
    buffer : array, shape (total,)
        Where the gradients of this rank are, riders first.
    flat : FlatParameters
    """

    def __init__(self, transport: Transport, buffer: Any, flat: FlatParameters) -> None:
        self.transport = transport
        self._buffer = buffer
        self._flat = flat
        self._riders = len(flat.riders)

    def begin(self, piece: Slice) -> Pending | None:
        """Start to sum a slice."""
        array, back = _on_host(self._buffer[piece.start : piece.stop])
        exact = 0 if piece.index else self._riders
        return _returned(self.transport.allreduce(array, piece.index, exact), array, back)

    def own(self, piece: Slice) -> tuple[int, int]:
        """Return all of ``piece``: every rank updates it."""
        return piece.start, piece.stop

    def gather(self, piece: Slice) -> Pending | None:
        """Do nothing: every rank has all."""
        return None

    def rescale(self, factor: float) -> None:
        """Scale what compression owes, which is in units of the gradient."""
        owed = self.transport.state()
        if owed:
            self.transport.load({name: factor * array for name, array in owed.items()})


class Shared(Summed):
    """Every rank gets the sum of its part of each slice, updates that and fetches the rest.

    Gives the numbers of `Summed`, for ``1 / p`` of the optimizer's state and work on a rank.

    References
    ----------
    Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter
    models", SC 2020 (the first stage).
    """

    def begin(self, piece: Slice) -> Pending | None:
        """Start to sum this rank's part of a slice."""
        array, back = _on_host(self._buffer[piece.start : piece.stop])
        exact = 0 if piece.index else self._riders
        return _returned(self.transport.reduce_scatter(array, piece.index, exact), array, back)

    def own(self, piece: Slice) -> tuple[int, int]:
        """Return this rank's part of ``piece``."""
        part = self.transport.part(piece.stop - piece.start)
        return piece.start + part.start, piece.start + part.stop

    def gather(self, piece: Slice) -> Pending | None:
        """Start to fetch the parameters of ``piece`` that others have updated."""
        array, back = _on_host(self._flat.weights[piece.start : piece.stop])
        return _returned(self.transport.allgather(array, piece.index), array, back)


def _on_host(array: Any) -> tuple[np.ndarray, Any]:
    """Return an array that messages can use, and where it is to go back to, if it must."""
    host = backend.to_host(array)
    return host, None if host is array else array


def _returned(pending: Pending, host: np.ndarray, back: Any) -> Pending:
    return pending if back is None else _Staged(pending, host, back)


class _Staged:
    """An exchange of a host copy, which goes back to the device at the end."""

    def __init__(self, pending: Pending, host: np.ndarray, back: Any) -> None:
        self._pending, self._host, self._back = pending, host, back

    def test(self) -> bool:
        if not self._pending.test():
            return False
        self._finish()
        return True

    def wait(self, pause_s: float = 0.0) -> None:
        self._pending.wait(pause_s)
        self._finish()

    def _finish(self) -> None:
        self._back[...] = backend.module_of(self._back).asarray(self._host)
