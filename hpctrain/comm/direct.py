"""Sums by messages between pairs of ranks, in one round or two, optionally compressed."""

from collections.abc import Callable

import numpy as np

from hpctrain.backend import Array
from hpctrain.comm.coded import Coded
from hpctrain.comm.compress import Codec
from hpctrain.comm.group import Group
from hpctrain.comm.request import Handle
from hpctrain.comm.transfer import Flat, Pending, Pool, Scratch, Steps, Transfer, exchange
from hpctrain.comm.transport import State, check_array, part_of
from hpctrain.comm.wire import Plain, Wire, Work, sum_in_order

LATENCY_BYTES = 16384
"""What a link carries in the time that a round of messages costs beside its bytes: 50 µs at
1 Gbit/s are 6 kB, 2 µs at 100 Gbit/s are 25 kB."""

TAGGED_KEYS = 2**14  # two tags for each key, below the 32767 that every MPI has


class Direct:
    """Sums by messages straight from every rank to every other.

    Parameters
    ----------
    group : Group
        Used by this transport alone; its limit cuts the messages.
    codec : Codec, optional
        Compresses sums, in both rounds, but never what `allgather` carries.  Float32 only.

    Attributes
    ----------
    pool : Pool
        The scratch memory.

    Notes
    -----
    An allreduce of n elements on p ranks takes two rounds: part j of every rank goes to rank j,
    which sums in the order of the ranks and sends the sum to all; each rank sends
    ``2 n (p - 1) / p`` elements in ``2 (p - 1)`` messages.  On two ranks, or where the bytes
    cost less than a round, every rank sends its whole slice to all and sums for itself.

    With a codec the messages of both rounds are encoded.  A rank decodes its own as well, so
    that all add the same values and end with the same bits.

    Messages are told apart by key, not by the order of calls: two ranks may bring their
    transfers forward in different orders.  Messages of one key keep theirs, as MPI promises for
    those of one pair and tag.
    """

    def __init__(self, group: Group, codec: Codec | None = None) -> None:
        self.rank, self.size = group.rank, group.size
        self.pool = Pool()
        self._group = group
        self._coded = None if codec is None else Coded(codec, group.size)
        self._wire: Wire = self._coded or Plain()
        self._under_way: list[Transfer] = []
        # Every rank begins with its right neighbour, so that no rank is everybody's first.
        self._dests = [(self.rank + k) % self.size for k in range(1, self.size)]
        self._sources = [(self.rank - k) % self.size for k in range(1, self.size)]

    def part(self, count: int) -> slice:
        """Return the part of ``count`` elements whose sum this rank makes."""
        return part_of(count, self.size, self.rank)

    def allreduce(self, array: Array, key: int, exact: int = 0) -> Pending:
        """Sum over all ranks, in place."""
        check_array(f"allreduce of slice {key}", array)
        if self.size == 1:
            return Handle()
        small = self._is_small(array, exact)
        return self._start(self._whole if small else self._two_rounds, array, key, exact)

    def reduce_scatter(self, array: Array, key: int, exact: int = 0) -> Pending:
        """Sum over all ranks; ``array[part(n)]`` and ``array[:exact]`` then hold the sums."""
        check_array(f"reduce_scatter of slice {key}", array)
        return self._start(self._scatter, array, key, exact) if self.size > 1 else Handle()

    def allgather(self, array: Array, key: int) -> Pending:
        """Bring the parts of all ranks to all.

        Never compressed, codec or not: what is gathered are parameters, which have no second
        step to make good for what an encoding loses.
        """
        check_array(f"allgather of slice {key}", array)
        return self._start(self._gather_plain, array, key, 0) if self.size > 1 else Handle()

    def reset(self) -> None:
        """Forget what compression owes; on all ranks, with nothing under way."""
        self._residuals().clear()

    def state(self) -> State:
        """Return copies of what compression owes, by ``up/KEY`` and ``down/KEY``."""
        return {name: residual.copy() for name, residual in self._residuals().items()}

    def load(self, state: State) -> None:
        """Continue from what `state` returned on the same rank of as many.

        Without a codec that needs it, it is dropped.  A key of another length than the slice
        that comes under it raises `CheckpointError` there.
        """
        self.reset()
        for name, residual in state.items():
            self._residuals()[name] = np.array(residual, np.float32)

    def span(self, name: str, count: int, exact: int = 0) -> slice:
        """Return the whole slice for what goes up, this rank's sums for what comes down."""
        part = self.part(count)
        if not name.startswith("down/"):
            return slice(0, count)
        return slice(max(part.start, exact), max(part.stop, exact))

    def take_over(self, owed: Array, key: int, exact: int = 0) -> None:
        """Owe an equal part of ``owed``; without a codec that has residuals, drop it."""
        if self._coded is not None and self._coded.owes and owed.size:
            self._coded.residuals[f"up/{key}"] = np.divide(owed, self.size, dtype=np.float32)

    def _residuals(self) -> State:
        return {} if self._coded is None else self._coded.residuals

    def _start(
        self, steps: Callable[[Work], Steps], array: Array, key: int, exact: int
    ) -> Transfer:
        work = Work(array, key, exact, Scratch(self.pool))

        def closed() -> Steps:
            yield from steps(work)
            work.scratch.close()

        return Transfer(closed(), self._under_way)

    def _is_small(self, array: Array, exact: int) -> bool:
        """Whether one round with all bytes is sooner over than two with parts of them."""
        p = self.size
        nbytes = self._wire.nbytes(array.size - exact, array.itemsize) + exact * array.itemsize
        # (p - 1) n bytes in one round against 2 n (p - 1) / p in two.
        return nbytes * (p - 1) * (p - 2) <= p * LATENCY_BYTES

    def _two_rounds(self, work: Work) -> Steps:
        # All memory is taken now, so that how much is needed never depends on the timing.
        landings = self._landings(work, self._wire)
        yield from self._scatter(work)
        yield from self._gather(work, self._wire, landings)

    def _gather_plain(self, work: Work) -> Steps:
        wire = Plain()
        return self._gather(work, wire, self._landings(work, wire))

    def _landings(self, work: Work, wire: Wire) -> list[Flat]:
        """Return where the sums of all ranks come in, or go out."""
        return [wire.landing(work, span) for span in self._spans(work)]

    def _whole(self, work: Work) -> Steps:
        """Send everything to everybody."""
        if not self._wire.lossy:
            work = work._replace(exact=0)  # all of it is summed exactly, by every rank
        return self._sum(work, [slice(work.exact, work.array.size)] * self.size, whole=True)

    def _scatter(self, work: Work) -> Steps:
        """Send part j to rank j."""
        return self._sum(work, self._spans(work), whole=False)

    def _spans(self, work: Work) -> list[slice]:
        """Return the parts of all ranks without the head."""
        parts = [part_of(work.array.size, self.size, rank) for rank in range(self.size)]
        return [slice(max(p.start, work.exact), max(p.stop, work.exact)) for p in parts]

    def _sum(self, work: Work, spans: list[slice], whole: bool) -> Steps:
        """Send each rank its span; sum the head and the own span of all."""
        mine = spans[self.rank]
        packets = [
            self._wire.own(work, mine) if rank == self.rank else self._wire.room(work, mine)
            for rank in range(self.size)
        ]
        own = packets[self.rank]
        yield exchange(
            self._group,
            f"sum of slice {work.key}",
            [(rank, packets[rank].data) for rank in self._sources],
            [
                (rank, (own if whole else self._wire.pack(work, spans[rank])).data)
                for rank in self._dests
            ],
            2 * (work.key % TAGGED_KEYS),
        )
        heads = [packet.head for packet in packets]
        sum_in_order(heads, work.array[: work.exact], self.rank, partial=heads[0])
        self._wire.add_up(work, packets, mine, self.rank)

    def _gather(self, work: Work, wire: Wire, landings: list[Flat]) -> Steps:
        """Send the own part to all, and take theirs."""
        spans = self._spans(work)
        own = landings[self.rank]
        wire.announce(work, own, spans[self.rank])
        yield exchange(
            self._group,
            f"gathering of slice {work.key}",
            [(rank, landings[rank]) for rank in self._sources],
            [(rank, own) for rank in self._dests],
            2 * (work.key % TAGGED_KEYS) + 1,
        )
        for landing, span in zip(landings, spans, strict=True):
            wire.land(work, landing, span)
