"""What the connections between the ranks of a group can do, measured; and bytes of exchanges.

The ranks send all at once, each to every other, as in an exchange of gradients: what counts is
not how fast one pair is alone.
"""

import time
from collections import deque
from itertools import pairwise
from statistics import median

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.comm.request import Handle
from hpctrain.comm.timeline import Link
from hpctrain.errors import CommError

__all__ = ["Link", "bytes_sent", "measure"]

_TAG = 7320  # apart from other messages of the group
_PINGS = 20
_PART_S = 0.12  # for each of two passes
_ROUND_S = 0.008  # a round that takes so long hides what it costs to start one
_LONG = 8  # latencies in a round that tells a rate
_LEAST, _MOST = 2**14, 2**22  # bytes that a rank sends in a round
_ROUNDS = (8, 24)  # at least and at most, and a few of them under way
_DEPTH = 2  # rounds under way
_PAUSE_S = 2e-4  # between looks, in the pass that counts the time of the processor


def bytes_sent(nbytes: int, ranks: int, how: str = "allreduce") -> int:
    """Return how many bytes a rank sends, and receives, in an exchange.

    Parameters
    ----------
    nbytes : int
        Size of the slice.
    ranks : int
        p, at least 1.
    how : {"allreduce", "reduce_scatter", "allgather", "whole"}
        ``2 (p - 1) / p`` times the bytes, the least there is; half of that, twice; and
        ``p - 1`` times, where each rank sends its whole slice to every other.

    Raises
    ------
    CommError
        If ``how`` is none of these.

    Examples
    --------
    >>> [bytes_sent(1000, 4, how) for how in ("allreduce", "allgather", "whole")]
    [1500, 750, 3000]
    """
    parts = {"allreduce": 2, "reduce_scatter": 1, "allgather": 1, "whole": ranks}
    if how not in parts or ranks < 1:
        raise CommError(
            f"bytes_sent: got {how!r} over {ranks} ranks, needed one of {', '.join(parts)}, "
            "and at least 1 rank"
        )
    return -(-nbytes * parts[how] * (ranks - 1) // ranks)


def measure(group: Group, rounds: int = 1, in_flight: int = 1) -> Link:
    """Measure the connections of a group, all ranks at the same time; collective.

    Parameters
    ----------
    group : Group
        Free of other messages meanwhile.
    rounds : int
        How many rounds of messages an exchange has, one after the other: 2 for reduce-scatter
        and allgather.
    in_flight : int
        Put into the result.

    Returns
    -------
    Link
        The same on every rank: the slowest rank counts.  ``latency_s`` is that of all rounds.
        ``cpu_s_per_byte`` is the time of the processor that sending and receiving a byte took
        from the thread that waits with pauses; put 0 there where it has a core of its own.
        Alone, a rank has a link that costs nothing.

    Notes
    -----
    Takes about 0.3 s, on links below about 1 MB/s longer: some 100 KB at their rate.  A link
    that lets a burst pass before it limits the rate must be held up by more than that, so
    messages grow until they take 8 ms.
    """
    if group.size == 1:
        return Link(0.0, 1e15, in_flight)
    # Where ranks share cores, spinning slows those that are waited for: the better way counts.
    latency = min(_latency(group, pause_s) for pause_s in (0.0, _PAUSE_S))
    size, seconds = _size(group)
    while True:
        count = round(min(max(_PART_S / seconds, _ROUNDS[0]), _ROUNDS[1]))
        seconds, _ = _stream(group, size, count, 0.0)
        # A rank that was held up for a moment can make a small round look long.
        if seconds >= max(_ROUND_S / 2, _LONG * latency) or size >= _MOST:
            break
        size *= 2
    paused, busy = _stream(group, size, count, _PAUSE_S)
    rate = size / min(seconds, paused)
    return Link(latency * rounds, rate, in_flight, cpu_s_per_byte=busy / size)


class _Rounds:
    """Buffers for rounds in which each rank sends ``size`` bytes in all."""

    def __init__(self, group: Group, size: int) -> None:
        self._group = group
        # Written once, so that no page is made while the clock runs.
        self._out = np.ones(max(1, size // (group.size - 1)), np.uint8)
        self._in = np.ones((_DEPTH, group.size, self._out.size), np.uint8)

    def start(self, number: int) -> list[Handle]:
        """Start a round: each rank begins with its neighbour, so that none gets all at once."""
        group, rows = self._group, self._in[number % _DEPTH]
        away = range(1, group.size)
        sources = [(group.rank - d) % group.size for d in away]
        targets = [(group.rank + d) % group.size for d in away]
        return [
            *(group.irecv(rows[source], source, _TAG) for source in sources),
            *(group.isend(self._out, target, _TAG) for target in targets),
        ]


def _wait(handles: list[Handle], pause_s: float = 0.0) -> None:
    for handle in handles:
        handle.wait(pause_s)


def _slowest(group: Group, *seconds: float) -> list[float]:
    numbers = np.array(seconds)
    group.allreduce(numbers, "max", name="times")
    return [float(n) for n in numbers]


def _latency(group: Group, pause_s: float) -> float:
    """Return the time of a round of single bytes."""
    empty = _Rounds(group, 1)
    _wait(empty.start(0), pause_s)  # opens connections
    times = []
    for number in range(_PINGS):
        begun = time.perf_counter()
        _wait(empty.start(number), pause_s)
        times.append(time.perf_counter() - begun)
    return _slowest(group, median(times))[0]


def _size(group: Group) -> tuple[int, float]:
    """Return a size whose rounds take long enough, and how long they take."""
    size = _LEAST
    while True:
        some = _Rounds(group, size)
        group.barrier()
        begun = time.perf_counter()
        _wait(some.start(0))
        seconds = max(_slowest(group, time.perf_counter() - begun)[0], 1e-6)
        if seconds >= _ROUND_S or size >= _MOST:
            return size, seconds
        size *= 2


def _stream(group: Group, size: int, count: int, pause_s: float) -> tuple[float, float]:
    """Return the time of a round among many, and that of this thread in it."""
    some = _Rounds(group, size)
    group.barrier()
    begun = time.perf_counter()
    under_way = deque(some.start(number) for number in range(_DEPTH))
    done, used = [], 0.0
    for number in range(count):
        _wait(under_way.popleft(), pause_s)
        done.append(time.perf_counter())
        if number == _DEPTH - 1:
            used = time.thread_time()
        if number + _DEPTH < count:
            under_way.append(some.start(number))
    busy = (time.thread_time() - used) / (count - _DEPTH)
    # What comes in a burst at the start shortens the mean; after a rank was held up for a
    # moment, rounds that were buffered meanwhile shorten the median.
    half = count // 2
    means = [(end - begun) / n for n, end in enumerate(done[half:], half + 1)]
    seconds = max(min(means), median(b - a for a, b in pairwise(done[_DEPTH - 1 :])))
    seconds, busy = _slowest(group, seconds, busy)
    return max(seconds, 1e-9), busy
