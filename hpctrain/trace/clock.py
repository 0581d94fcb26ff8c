"""Clock alignment between two ranks, from pings; pure."""

from collections.abc import Iterable

from hpctrain.errors import DataError

__all__ = ["offset_from_pings"]


def offset_from_pings(pings: Iterable[tuple[int, int, int]]) -> int:
    """Return how far a remote clock is ahead of the local one.

    Parameters
    ----------
    pings : iterable of (t_send, t_remote, t_recv), ns
        Local time of sending, remote time of answering, local time of the answer's arrival.

    Returns
    -------
    int, ns
        Remote minus local: subtract it from a remote time to get a local one.

    Raises
    ------
    DataError
        If there is no ping, or one that came back before it was sent.

    Notes
    -----
    The ping with the smallest round trip counts: its answer was made at the middle of the
    round trip, give or take half of it.  So the error is at most half the smallest round trip.

    References
    ----------
    Cristian, "Probabilistic clock synchronization", Distributed Computing 3 (1989) 146-158.

    Examples
    --------
    >>> offset_from_pings([(0, 1080, 100), (200, 1210, 220)])
    1000
    """
    best = min(pings, key=lambda ping: ping[2] - ping[0], default=None)
    if best is None:
        raise DataError("offset_from_pings: got no pings, needed at least one")
    sent, remote, received = best
    if received < sent:
        raise DataError(
            f"offset_from_pings: a ping sent at {sent} ns came back at {received} ns, "
            "needed times of one steady clock"
        )
    return remote - (sent + received) // 2
