"""The ranks that share the layers of a model, as the operations of `hpctrain.ops.team` see it.

Everything that they do together is one kind of round: each rank sends one array to each other
one, and receives one from each. What a round is for is up to the operations.
"""

from collections.abc import Sequence
from time import perf_counter

from hpctrain.backend import Array
from hpctrain.comm.group import Group
from hpctrain.comm.progress import Log

__all__ = ["Team"]


class Team:
    """The tensor-parallel ranks; making one is collective.

    Rounds are part of a plan's steps: they run on the compute lane, in the order of the
    program, which is the same on all ranks, on a communicator of their own. It is hashable by
    identity, and belongs to one thread at a time.

    Parameters
    ----------
    group : Group
        Its communicator is duplicated.
    pause_s : float
        How to wait; see `hpctrain.comm.request.Handle.wait`.
    log : Log, optional
        Where rounds are noted; see `hpctrain.comm.watched.Logs.among`.

    Attributes
    ----------
    rank, size : int
    """

    def __init__(self, group: Group, pause_s: float = 0.0, log: Log | None = None) -> None:
        self.rank, self.size = group.rank, group.size
        self._log = Log() if log is None else log
        self._group = group.dup()
        self._pause_s = pause_s
        self._seconds = 0.0

    def __repr__(self) -> str:
        return f"{self.size} ranks"

    def swap(
        self, sent: Sequence[Array], received: Sequence[Array], name: str = "a round"
    ) -> None:
        """Send an array to each other rank, and receive one from each; blocks.

        Parameters
        ----------
        sent, received : sequence of array
            By rank; C-contiguous. What stands at this rank's own place is not looked at. They
            must not overlap.
        name : str
            What it is for, in a report of who keeps the others waiting.
        """
        began = perf_counter()
        self._log.posted(0, name)
        # Each begins with the next rank, so that not all send to the same one first.
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        under_way = [self._group.irecv(received[rank], rank) for rank in reversed(others)]
        under_way += [self._group.isend(sent[rank], rank) for rank in others]
        for handle in under_way:
            handle.wait(self._pause_s)
        self._log.completed(0)
        self._seconds += perf_counter() - began

    def take(self) -> float:
        """Return the seconds in rounds since the last `take`: communication, and waiting."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def free(self) -> None:
        """Free the communicator, on all ranks."""
        self._group.free()
