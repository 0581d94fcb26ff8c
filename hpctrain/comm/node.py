"""Sums through memory that the ranks of a host share, and then over hosts."""

from collections.abc import Callable

import numpy as np

from hpctrain.backend import Array
from hpctrain.comm.group import Group
from hpctrain.comm.request import Handle
from hpctrain.comm.transfer import Flat, Pending, Pool, Scratch, Steps, Transfer, exchange
from hpctrain.comm.transport import State, Transport, check_array, part_of
from hpctrain.comm.window import Window
from hpctrain.comm.wire import Work, sum_in_order
from hpctrain.errors import CommError

BLOCK = 2**15
"""Elements summed at a time: what all ranks of a host add of it stays in a cache of 1 MiB."""

LINE = 64
"""Bytes: what is copied into the window begins with a cache line."""

_TAGS = 2**15
_NOTHING = np.empty(0, np.uint8)


class Node:
    """Sums over the ranks of a host without messages, and over hosts by another transport.

    Rank j of a host sums part j of all its ranks where they lie; the ranks j of all hosts sum
    that over the hosts; then every rank copies the other parts from their owners.  The order of
    a sum is: the ranks of a host, then the hosts.

    Parameters
    ----------
    group : Group
        The ranks of this host, for this transport alone.
    window : Window
        Of the same group.  Slices lie in ``window.mine``, at the same place on every rank.
    up : Transport, optional
        Over the ranks with the same place on all hosts, as many on each.  It must tell messages
        apart by key, as `Direct` does: hosts reach it in different orders.
    staging : int
        So many bytes at the end of the window are for arrays that lie elsewhere: they are
        copied there and back, each key to its own place.

    Notes
    -----
    An allreduce costs 3 messages, of 16 bytes at most, between each two ranks of the host: the
    slice is *ready*, the part is *done*, the others' parts are *copied*.  Without the last one
    a rank could go on and overwrite its sum while another still copies it.
    """

    def __init__(
        self, group: Group, window: Window, up: Transport | None = None, staging: int = 0
    ) -> None:
        self._group, self._window, self._up = group, window, up
        self._local = range(group.size)
        self._peers = [rank for rank in self._local if rank != group.rank]
        self.rank = group.rank + (up.rank * group.size if up else 0)
        self.size = group.size * (up.size if up else 1)
        self.pool = Pool()
        self._under_way: list[Transfer] = []
        self._base: int = window.mine.ctypes.data
        self._staging_start = -(-(window.mine.size - staging) // LINE) * LINE
        self._staged: dict[int, slice] = {}

    def part(self, count: int) -> slice:
        """Return the part of ``count`` elements whose sum this rank makes."""
        part = part_of(count, self._group.size, self._group.rank)
        if self._up is None:
            return part
        inner = self._up.part(part.stop - part.start)
        return slice(part.start + inner.start, part.start + inner.stop)

    def allreduce(self, array: Array, key: int, exact: int = 0) -> Pending:
        """Sum over all ranks, in place."""
        return self._start("allreduce", self._allreduce, array, key, exact)

    def reduce_scatter(self, array: Array, key: int, exact: int = 0) -> Pending:
        """Sum over all ranks; ``array[part(n)]`` and ``array[:exact]`` then hold the sums."""
        return self._start("reduce_scatter", self._reduce_scatter, array, key, exact)

    def allgather(self, array: Array, key: int) -> Pending:
        """Bring the parts of all ranks to all; never compressed."""
        return self._start("allgather", self._allgather, array, key, 0)

    def reset(self) -> None:
        """Forget what is kept for each key; on all ranks, with nothing under way."""
        self._staged.clear()
        if self._up is not None:
            self._up.reset()

    def state(self) -> State:
        """Return what compression between hosts owes."""
        return {} if self._up is None else self._up.state()

    def load(self, state: State) -> None:
        """Continue from what `state` returned."""
        if self._up is not None:
            self._up.load(state)

    def span(self, name: str, count: int, exact: int = 0) -> slice:
        """Return what the transport between hosts says, within this rank's part."""
        mine = self._spans_of(count, exact)[self._group.rank]
        if self._up is None:
            return slice(0, 0)
        head = 0 if self._group.rank else exact
        inner = self._up.span(name, mine.stop - mine.start, head)
        return slice(mine.start + inner.start, mine.start + inner.stop)

    def take_over(self, owed: Array, key: int, exact: int = 0) -> None:
        """Let the transport between hosts owe this rank's part."""
        if self._up is not None:
            mine = self._spans_of(owed.size, exact)[self._group.rank]
            self._up.take_over(owed[mine], key, 0 if self._group.rank else exact)

    def _start(
        self, what: str, steps: Callable[[Work], Steps], array: Array, key: int, exact: int
    ) -> Pending:
        check_array(f"{what} of slice {key}", array)
        if self.size == 1:
            return Handle()
        work = Work(array, key, exact, Scratch(self.pool))
        if not self._is_inside(array):
            work = work._replace(array=self._stage(array, key))

        def closed() -> Steps:
            if work.array is not array:
                work.array[:] = array
            yield from steps(work)
            if work.array is not array:
                array[:] = work.array
            work.scratch.close()

        return Transfer(closed(), self._under_way)

    def _allreduce(self, work: Work) -> Steps:
        spans = self._spans(work)
        yield from self._sum(work, spans)
        mine = spans[self._group.rank]
        if self._up is not None:
            yield self._up.allreduce(work.array[mine], work.key, self._head(work))
        yield from self._spread(work, spans)

    def _reduce_scatter(self, work: Work) -> Steps:
        if work.exact > part_of(work.array.size, self._group.size, 0).stop:
            yield from self._allreduce(work)  # so short that the head changes the parts
            return
        spans = self._spans(work)
        yield from self._sum(work, spans)
        if self._up is not None:
            part = work.array[spans[self._group.rank]]
            yield self._up.reduce_scatter(part, work.key, self._head(work))
        if work.exact:
            owners = [slice(0, work.exact)] + [slice(0, 0)] * (self._group.size - 1)
            yield from self._spread(work, owners)
        else:
            yield self._signal(work)  # nobody reads what lies here any more

    def _allgather(self, work: Work) -> Steps:
        spans = self._spans(work)
        yield from self._ready(work)
        if self._up is not None:
            yield self._up.allgather(work.array[spans[self._group.rank]], work.key)
        yield from self._spread(work, spans)

    def _spans(self, work: Work) -> list[slice]:
        return self._spans_of(work.array.size, work.exact)

    def _spans_of(self, count: int, head: int) -> list[slice]:
        """Return the parts of the local ranks; the head belongs to the first."""
        parts = [part_of(count, self._group.size, rank) for rank in self._local]
        return [
            slice(max(part.start, head if rank else 0), max(part.stop, head))
            for rank, part in enumerate(parts)
        ]

    def _head(self, work: Work) -> int:
        return work.exact if self._group.rank == 0 else 0

    def _sum(self, work: Work, spans: list[slice]) -> Steps:
        """Overwrite the own part by the sum of this host."""
        partial = work.scratch.array(BLOCK, work.array.dtype)
        yield from self._ready(work)
        mine = spans[self._group.rank]
        terms = [self._at(rank, work.array)[mine] for rank in self._local]
        if len(terms) == 1:
            return
        for start in range(0, mine.stop - mine.start, BLOCK):
            blocks = [term[start : start + BLOCK] for term in terms]
            out = blocks[self._group.rank]
            sum_in_order(blocks, out, self._group.rank, partial[: out.size])

    def _spread(self, work: Work, spans: list[slice]) -> Steps:
        """Say that the own part is done, and copy the others'."""
        yield self._signal(work)
        self._window.sync()
        for rank in self._peers:
            work.array[spans[rank]] = self._at(rank, work.array)[spans[rank]]
        yield self._signal(work)

    def _ready(self, work: Work) -> Steps:
        """Say where the slice lies, and wait until those of all ranks are there."""
        place = work.scratch.array(2, np.int64)
        place[:] = self._offset(work.array), work.array.nbytes
        others = {rank: work.scratch.array(2, np.int64) for rank in self._peers}
        yield self._signal(work, place, others)
        self._window.sync()
        for rank, other in others.items():
            if (other != place).any():
                raise CommError(
                    f"slice {work.key}: {place[1]} bytes lie at {place[0]} of the window here, "
                    f"but {other[1]} at {other[0]} on rank {rank} of this host; put them at "
                    "one place on all ranks"
                )

    def _signal(
        self, work: Work, message: Flat = _NOTHING, places: dict[int, Flat] | None = None
    ) -> Handle:
        """Send ``message`` to all local ranks, and wait for theirs."""
        self._window.sync()
        return exchange(
            self._group,
            f"signal of slice {work.key}",
            [(rank, places[rank] if places else _NOTHING) for rank in self._peers],
            [(rank, message) for rank in self._peers],
            work.key % _TAGS,
        )

    def _offset(self, array: Flat) -> int:
        """Return where ``array`` lies, in bytes from the beginning of the window."""
        return array.ctypes.data - self._base

    def _is_inside(self, array: Flat) -> bool:
        start = self._offset(array)
        return start >= 0 and start + array.nbytes <= self._window.mine.size

    def _at(self, rank: int, array: Flat) -> Flat:
        """Return what lies at the place of ``array`` on another rank of this host."""
        offset = self._offset(array)
        return self._window.of(rank)[offset : offset + array.nbytes].view(array.dtype)

    def _stage(self, array: Flat, key: int) -> Flat:
        """Return the place in the window for an array from elsewhere."""
        if key not in self._staged:
            used = sum(place.stop - place.start for place in self._staged.values())
            start = self._staging_start + used
            stop = start + -(-array.nbytes // LINE) * LINE
            self._staged[key] = slice(start, stop)
        place = self._staged[key]
        if array.nbytes > place.stop - place.start or place.stop > self._window.mine.size:
            raise CommError(
                f"slice {key}: {array.nbytes} bytes lie outside the window, and there is no "
                "place left to copy them to; put the array into the window, or give it more "
                "staging"
            )
        return self._window.mine[place.start :][: array.nbytes].view(array.dtype)
