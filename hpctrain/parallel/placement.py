"""Which server keeps what: each has a part of every slice, so that all have as many bytes."""

from collections.abc import Mapping, Sequence

from hpctrain.comm.transport import part_of
from hpctrain.parallel.flat import Slice

__all__ = ["Places", "place"]

Places = list[list[tuple[int, int]]]
"""By slice and server: first and last element of the flat buffers."""


def place(
    slices: Sequence[Slice], servers: int, widths: Mapping[int, int] | None = None
) -> Places:
    """Divide the slices among servers.

    Parameters
    ----------
    slices : sequence of Slice
    servers : int
        At least 1.
    widths : mapping of int to int, optional
        By index of a slice the length of its rows, where these stay together.

    Examples
    --------
    >>> place([Slice(0, 0, 48, ()), Slice(1, 48, 68, ())], 2)
    [[(0, 32), (32, 48)], [(48, 64), (64, 68)]]
    >>> place([Slice(0, 0, 60, ())], 2, {0: 20})
    [[(0, 40), (40, 60)]]
    """
    found = []
    for piece in slices:
        count = piece.stop - piece.start
        width = (widths or {}).get(piece.index, 0)
        parts = [
            _rows(count, width, servers, s) if width else part_of(count, servers, s)
            for s in range(servers)
        ]
        found.append([(piece.start + p.start, piece.start + p.stop) for p in parts])
    return found


def _rows(count: int, width: int, servers: int, server: int) -> slice:
    """Return part ``server`` of rows; what is behind the last one goes to the last server."""
    rows = count // width
    first, last = -(-rows * server // servers), -(-rows * (server + 1) // servers)
    return slice(first * width, count if server == servers - 1 else last * width)
