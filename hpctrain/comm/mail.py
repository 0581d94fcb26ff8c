"""Short messages between threads of all ranks that never wait for each other."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from hpctrain.comm.lasting import lasting
from hpctrain.comm.request import call
from hpctrain.errors import LostRankError

__all__ = ["Mail"]

PROBES = 200
"""How often to look at once: each look takes in about one message, and before ours may lie
those of a stalled training, which no other thread takes in."""


class Mail:
    """JSON messages, sent and looked for without blocking; collective to make and to close.

    Parameters
    ----------
    comm : MPI.Intracomm
        A communicator that nobody else uses; `close` frees it.
    lasts : bool
        Go on when a rank dies, where MPI bears it.

    Notes
    -----
    `meet` may be called while another thread uses the rest, which belongs to one at a time.
    """

    def __init__(self, comm: MPI.Intracomm, lasts: bool = False) -> None:
        self._comm, self._lasts = comm, lasts
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._status = MPI.Status()
        self._under_way: list[tuple[MPI.Request, Any]] = []

    def send(self, rank: int, value: Any) -> None:
        """Send ``value`` to ``rank``, whenever that looks."""
        data = np.frombuffer(json.dumps(value).encode(), np.uint8)
        # Synchronous, for `close`; and the data must live as long as the request.
        self._under_way.append((self._comm.Issend(data, rank), data))

    def received(self) -> Iterator[tuple[int, Any]]:
        """Yield sender and value of each message that is there."""
        self._under_way = [row for row in self._under_way if not self._gone(row[0])]
        comm, status = self._comm, self._status
        for _ in range(PROBES):
            try:
                if not call("mail", comm.Iprobe, MPI.ANY_SOURCE, MPI.ANY_TAG, status):
                    continue
                source = status.Get_source()
                data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
                call("mail", comm.Recv, data, source)
            except LostRankError:
                if not self._lasts:
                    raise
                if not comm.Is_revoked():
                    comm.Ack_failed()  # and listen to the others
                return
            yield source, json.loads(data.tobytes())

    def _gone(self, request: MPI.Request) -> bool:
        """Return whether a message is with its receiver, or the receiver dead."""
        try:
            return bool(call("mail", request.Test))
        except LostRankError:
            if not self._lasts:
                raise
            return True

    def meet(self) -> None:
        """Wait until all ranks are here, however long they take, without using a core."""
        self._all(_wait)

    def close(self) -> None:
        """Drop the messages that nobody has taken, and free the communicator; waits for all.

        References
        ----------
        Hoefler, Siebert and Lumsdaine, "Scalable communication protocols for dynamic sparse
        data exchange", PPoPP 2010: a barrier that each rank enters when its sends are matched.
        """
        while self._under_way:
            self._drop()
        self._all(self._drain)
        self._comm.Free()

    def _all(self, work: Callable[[MPI.Intracomm], None]) -> None:
        if self._lasts:
            self._comm = lasting(self._comm, work)[0]
        else:
            work(self._comm)

    def _drain(self, comm: MPI.Intracomm) -> None:
        request = call("mail", comm.Ibarrier)
        while not call("mail", request.Test):
            self._drop()

    def _drop(self) -> None:
        if not sum(1 for _ in self.received()):
            time.sleep(1e-3)


def _wait(comm: MPI.Intracomm) -> None:
    request, pause_s = call("mail", comm.Ibarrier), 1e-4
    while not call("mail", request.Test):
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)
