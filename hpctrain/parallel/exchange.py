"""What happens to a slice of the gradient, and of the parameters if ranks share their update.

``begin(slice)`` starts the exchange and returns what can be asked whether it is done; then the
slice holds what the update needs. Slices are begun in one order, the same on every rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from hpctrain import backend
from hpctrain.comm.request import Handle
from hpctrain.comm.transfer import Pending
from hpctrain.comm.watched import noted, slice_names
from hpctrain.parallel.asked import AskedRows
from hpctrain.parallel.flat import FlatParameters, Slice
from hpctrain.parallel.rows import RowSlices
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.tables import Table
from hpctrain.parallel.traded import Traded
from hpctrain.parallel.ways import Way
from hpctrain.parallel.work import Options, Work

__all__ = ["Alone", "Exchange", "Shared", "Summed", "exchange_by"]


class Exchange(Protocol):
    """Turns each rank's part of a gradient slice into the gradient of the global batch."""

    def begin(self, piece: Slice, number: int = 0) -> Pending | None:
        """Start exchanging ``piece`` of step ``number``; None if nothing is to wait for."""

    def note(self, work: Work, number: int) -> None:
        """Be told of a part of step ``number`` before it is computed."""

    def nbytes(self, piece: Slice) -> int:
        """Return how many bytes this rank sends for ``piece``."""

    def own(self, piece: Slice) -> tuple[int, int]:
        """Return the elements of the flat buffers that this rank updates of ``piece``."""

    def gather(self, piece: Slice) -> Pending | None:
        """Start to fetch what others have updated of ``piece``."""

    def land(self, piece: Slice) -> None:
        """Bring parameters of ``piece`` to their place that have come instead of a gradient."""

    def rescale(self, factor: float) -> None:
        """Note that gradients will be ``factor`` times as large; with nothing under way."""


class Alone:
    """One rank: there is nothing to exchange."""

    def begin(self, piece: Slice, number: int = 0) -> Pending | None:
        """Do nothing."""
        return None

    def note(self, work: Work, number: int) -> None:
        """Do nothing."""

    def nbytes(self, piece: Slice) -> int:
        """Return 0."""
        return 0

    def own(self, piece: Slice) -> tuple[int, int]:
        """Return all of ``piece``."""
        return piece.start, piece.stop

    def gather(self, piece: Slice) -> Pending | None:
        """Do nothing."""
        return None

    def land(self, piece: Slice) -> None:
        """Do nothing."""

    def rescale(self, factor: float) -> None:
        """Do nothing."""


class Summed:
    """Every rank gets the sum over all ranks, in place, and makes the same update.

    Parameters
    ----------
    way : Way
        Its transport is used by this exchange alone.
    buffer : array, shape (total,)
        Where the gradients of this rank are, riders first.
    flat : FlatParameters
    rows : RowSlices, optional
        Slices of which only rows travel.
    names : sequence of str, optional
        Of the slices, for the report of a stall.
    """

    def __init__(
        self,
        way: Way,
        buffer: Any,
        flat: FlatParameters,
        rows: RowSlices | None = None,
        names: Sequence[str] = (),
    ) -> None:
        assert way.transport is not None, "several ranks have something to sum by"
        self.transport = way.transport
        self._way = way
        self._names = names or [f"slice {piece.index}" for piece in flat.slices]
        self._rows = rows
        self._buffer = buffer
        self._flat = flat
        self._riders = len(flat.riders)

    def note(self, work: Work, number: int) -> None:
        """Remember which rows a part of a step touches."""
        if self._rows is not None:
            self._rows.note(work, number)

    def begin(self, piece: Slice, number: int = 0) -> Pending | None:
        """Start to sum a slice."""
        if self._rows is not None and piece.index in self._rows:
            return self._noted(self._rows.begin(piece, number), piece)
        array, back = _on_host(self._buffer[piece.start : piece.stop])
        exact = 0 if piece.index else self._riders
        pending = self._sum(array, piece.index, exact)
        return self._noted(_returned(pending, array, back), piece)

    def _sum(self, array: Any, key: int, exact: int) -> Pending:
        return self.transport.allreduce(array, key, exact)

    def nbytes(self, piece: Slice) -> int:
        """Return how many bytes this rank sends for a slice."""
        if self._rows is not None and piece.index in self._rows:
            return self._rows.nbytes(piece.index)
        return self._way.wire_bytes(piece.stop - piece.start, self._buffer.dtype.itemsize)

    def own(self, piece: Slice) -> tuple[int, int]:
        """Return all of ``piece``: every rank updates it."""
        return piece.start, piece.stop

    def gather(self, piece: Slice) -> Pending | None:
        """Do nothing: every rank has all."""
        return None

    def land(self, piece: Slice) -> None:
        """Do nothing: it is a gradient that has come."""

    def _noted(self, pending: Pending, piece: Slice) -> Pending | None:
        return noted(pending, self._way.log, piece.index, self._names[piece.index])

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

    def _sum(self, array: Any, key: int, exact: int) -> Pending:
        """Start to sum this rank's part of a slice."""
        return self.transport.reduce_scatter(array, key, exact)

    def nbytes(self, piece: Slice) -> int:
        """Return how many bytes this rank sends: parameters come back uncompressed."""
        there = super().nbytes(piece)
        if self._rows is not None and piece.index in self._rows:
            return there
        plain, itemsize = replace(self._way, codec=None), self._flat.weights.dtype.itemsize
        return (there + plain.wire_bytes(piece.stop - piece.start, itemsize)) // 2

    def own(self, piece: Slice) -> tuple[int, int]:
        """Return this rank's part of ``piece``."""
        if self._rows is not None and self._rows.come_back(piece.index):
            return self._rows.own(piece)
        part = self.transport.part(piece.stop - piece.start)
        return piece.start + part.start, piece.start + part.stop

    def gather(self, piece: Slice) -> Pending | None:
        """Start to fetch the parameters of ``piece`` that others have updated."""
        # Noted apart: the sum of a slice has its own count of steps.
        name = f"{self._names[piece.index]}, the new parameters"
        return noted(self._gathered(piece), self._way.log, ~piece.index, name)

    def _gathered(self, piece: Slice) -> Pending:
        if self._rows is not None and self._rows.come_back(piece.index):
            return self._rows.gather(piece)
        array, back = _on_host(self._flat.weights[piece.start : piece.stop])
        return _returned(self.transport.allgather(array, piece.index), array, back)


def exchange_by(
    way: Way, state: ModelState, options: Options, found: Mapping[int, Table]
) -> Exchange:
    """Return how the gradients of a model are exchanged.

    Parameters
    ----------
    way : Way
    state : ModelState
    options : Options
    found : mapping of int to Table
        Parameters of whose gradients only rows travel; each has a slice of its own.
    """
    sent = state.flat.grads if way.sums is None else way.sums.buffer
    names = slice_names([piece.parameters for piece in state.flat.slices], state.names)
    if way.trade is not None:
        asked = AskedRows(way.trade, sent, state.flat, found)
        return Traded(way.trade, sent, state.flat, names, way.log, asked)
    if way.transport is None or way.transport.size == 1:
        return Alone()
    rows = RowSlices(way.rows, sent, state.flat, found) if way.rows and found else None
    kind = Shared if options.sharded else Summed
    return kind(way, sent, state.flat, rows, names)


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

    def handles(self) -> Sequence[Handle]:
        return self._pending.handles()

    def _finish(self) -> None:
        self._back[...] = backend.module_of(self._back).asarray(self._host)
