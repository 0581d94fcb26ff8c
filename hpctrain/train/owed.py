"""What compression owes, in checkpoints: one array for each rank, and how they come back.

On as many ranks, with the same slices and the same path, a run goes on with the same bits. On
others all ranks together owe as much as before: the sum over the old ranks, in float32, is
divided evenly. What was owed is dropped where nothing is compressed any more: by a single rank,
or if compression is switched off.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.errors import CheckpointError
from hpctrain.parallel.flat import FlatParameters, Slice

__all__ = ["PREFIX", "Debtor", "collect", "restore"]

PREFIX = "owed/"
Arrays = Mapping[str, np.ndarray[Any, np.dtype[Any]]]
Rows = Sequence[Sequence[tuple[str, int, int]]]
"""For each rank the residuals in its array: name, and first and last element of the flat
gradient that it is about."""


class Debtor(Protocol):
    """Who owes: a transport, or a worker's exchange with servers."""

    def state(self) -> dict[str, Any]:
        """Return copies of what is owed, by a name that ends in ``/`` and the slice."""

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""

    def span(self, name: str, count: int, exact: int = 0) -> slice:
        """Return the elements of a slice of ``count`` that ``state()[name]`` is about."""

    def take_over(self, owed: Any, key: int, exact: int = 0) -> None:
        """Owe a part of what all together owe of slice ``key``."""


def collect(
    group: Group, transport: Debtor | None, flat: FlatParameters
) -> tuple[dict[str, np.ndarray[Any, np.dtype[Any]]], Rows]:
    """Return what all ranks owe, on rank 0; collective.

    Parameters
    ----------
    group : Group
        The ranks of the transport.
    transport : Debtor or None
        With nothing under way.
    flat : FlatParameters
        Its slices are the keys of the transport.

    Returns
    -------
    arrays : dict of str to ndarray, float32
        One for each rank; empty on the other ranks, and if nobody owes anything.
    rows : Rows
    """
    mine = {} if transport is None else transport.state()
    entries = [(name, *_span(transport, flat, name)) for name in mine]
    array = np.concatenate([np.empty(0, np.float32), *mine.values()])
    rows = group.gather_obj(entries)
    if rows is None:
        if array.size:
            group.send(array, 0)
        return {}, []
    found = {}
    for rank, row in enumerate(rows):
        size = sum(stop - start for _, start, stop in row)
        if size and rank:
            array = np.empty(size, np.float32)
            group.recv(array, rank)
        if size:
            found[f"{PREFIX}{rank}"] = array
    return found, rows if found else []


def restore(
    group: Group,
    transport: Debtor,
    flat: FlatParameters,
    saved: tuple[Arrays, Rows],
    factor: float = 1.0,
    parted: bool = False,
) -> None:
    """Give every rank what it owes; collective.

    Parameters
    ----------
    group, transport, flat
        As for `collect`.
    saved : (arrays, rows)
        On rank 0 what `collect` returned; the other ranks need the rows only.
    factor : float
        By which gradients are larger than they were then.
    parted : bool
        Whether ranks have other parts of the model: what was owed counts only if each rank has
        what it had, and is dropped otherwise.

    Raises
    ------
    CheckpointError
        If a residual lies outside the gradient.
    """
    arrays, rows = saved
    if not rows:
        return
    if not parted:
        _check(rows, flat)
    same = len(rows) == group.size and all(
        _span(transport, flat, name) == (start, stop)
        for name, start, stop in rows[min(group.rank, len(rows) - 1)]
    )
    if all(group.allgather_obj(same)):
        _give_back(group, transport, arrays, rows, factor)
        return
    if parted:
        return
    total = np.zeros(flat.total, np.float32)
    for rank, row in enumerate(rows) if group.rank == 0 else ():
        for _, (start, stop), part in _parts(row, arrays.get(f"{PREFIX}{rank}")):
            total[start:stop] += part
    group.bcast(total, 0)
    total *= np.float32(factor)
    for piece in flat.slices:
        transport.take_over(total[piece.start : piece.stop], piece.index, _head(piece, flat))


def _give_back(
    group: Group, transport: Debtor, arrays: Arrays, rows: Rows, factor: float
) -> None:
    """Send every rank its own array."""
    sizes = [sum(stop - start for _, start, stop in row) for row in rows]
    mine = np.asarray(arrays.get(f"{PREFIX}0", np.empty(0, np.float32)))
    if group.rank:
        mine = np.empty(sizes[group.rank], np.float32)
    for rank in range(1, group.size):
        if sizes[rank] and group.rank == 0:
            group.send(np.asarray(arrays[f"{PREFIX}{rank}"]), rank)
        elif sizes[rank] and group.rank == rank:
            group.recv(mine, 0)
    parts = _parts(rows[group.rank], mine)
    transport.load({name: part * np.float32(factor) for name, _, part in parts})


def _parts(row: Any, array: Any) -> list[tuple[str, tuple[int, int], Any]]:
    """Cut the array of a rank into its residuals."""
    found, place = [], 0
    for name, start, stop in row:
        found.append((name, (start, stop), array[place : place + stop - start]))
        place += stop - start
    return found


def _span(transport: Debtor | None, flat: FlatParameters, name: str) -> tuple[int, int]:
    """Return where in the flat gradient a residual is; nowhere if there is no such slice."""
    index = int(name.rpartition("/")[2])
    if transport is None or index >= len(flat.slices):
        return 0, 0
    piece = flat.slices[index]
    found = transport.span(name, piece.stop - piece.start, _head(piece, flat))
    return piece.start + found.start, piece.start + found.stop


def _head(piece: Slice, flat: FlatParameters) -> int:
    return 0 if piece.index else len(flat.riders)


def _check(rows: Rows, flat: FlatParameters) -> None:
    for name, start, stop in (entry for row in rows for entry in row):
        if not 0 <= start <= stop <= flat.total:
            raise CheckpointError(
                f"checkpoint: what is owed as {name} is about elements {start} to {stop}, the "
                f"gradient has {flat.total}; use the same model"
            )
