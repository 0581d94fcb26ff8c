"""How far the clocks of the ranks are apart."""

import time

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.trace import offset_from_pings

_TAG = 7310  # apart from other messages of the group
_PINGS = 20  # the fastest counts; a few are slow while caches and connections warm up


def offsets(group: Group, pings: int = _PINGS) -> list[int]:
    """Measure how far the clock of every rank is ahead of that of rank 0.

    Rank 0 pings one rank after the other; collective.

    Parameters
    ----------
    group : Group
        All ranks.
    pings : int
        Pings for each rank.

    Returns
    -------
    list of int, ns
        On rank 0 one per rank, of ``time.perf_counter_ns``: subtract it from a time of that
        rank to get one of rank 0.  Empty on the others.

    Notes
    -----
    Costs ``2 (p - 1) pings`` messages of 8 bytes, one after the other: about 0.1 s for a
    thousand ranks.  The error is at most half of the fastest round trip.
    """
    group.barrier()
    clock = np.zeros(1, np.int64)
    if group.rank != 0:
        for _ in range(pings):
            group.recv(clock, 0, _TAG)
            clock[0] = time.perf_counter_ns()
            group.send(clock, 0, _TAG)
        return []
    found = [0]
    for rank in range(1, group.size):
        times = []
        for _ in range(pings):
            sent = time.perf_counter_ns()
            group.send(clock, rank, _TAG)
            group.recv(clock, rank, _TAG)
            times.append((sent, int(clock[0]), time.perf_counter_ns()))
        found.append(offset_from_pings(times))
    return found
