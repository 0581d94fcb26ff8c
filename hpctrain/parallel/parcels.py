"""Messages between the ranks of a pipeline: buffers, receives posted ahead, sends under way.

What comes from one rank lies in a few boxes. Receives are posted in the order in which that
rank sends; as soon as a box is emptied the next receive is posted into it. So a message finds
its box, and who is too far ahead waits.

Each message is noted by both its ends, once where it is sent and once where its receive is
posted, in the log of the pair: so a report of a stall says which end has not come to it.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain import backend
from hpctrain.comm.group import Group
from hpctrain.comm.progress import Log
from hpctrain.comm.request import Handle

__all__ = ["OUTBOXES", "Box", "Parcels"]

Box = tuple[int, int]  # another rank, and the number of the box
Ends = tuple[int, int]  # source and destination
OUTBOXES = 2  # messages to one rank that may be under way: one is filled, one travels
_TAG = 0


class Parcels:
    """The boxes of one rank.

    All but `arriving` and `leaving` belongs to one thread.

    Parameters
    ----------
    group : Group
        The ranks of the pipeline; its point-to-point messages belong to this alone.
    device : Device
        Where the boxes are.
    pause_s : float
        How to wait; see `hpctrain.comm.request.Handle.wait`.
    """

    def __init__(self, group: Group, device: backend.Device, pause_s: float = 0.0) -> None:
        self._group, self._device, self._pause_s = group, device, pause_s
        self._in: dict[tuple[int, int], Any] = {}  # memory of a box, by (rank, number)
        self._out: dict[tuple[int, int], Any] = {}
        self._coming: dict[tuple[int, int], Handle] = {}
        self._going: dict[tuple[int, int], Handle] = {}
        self._queue: dict[int, deque[int]] = {}  # bytes of what is not posted yet, by rank
        self._logs: Mapping[Ends, Log] = defaultdict(Log)  # that nobody reads

    def watch(self, logs: Mapping[Ends, Log]) -> None:
        """Note messages from now on; see `hpctrain.comm.watched.Logs.pairs`."""
        self._logs = logs

    def awaiting(self, source: Box | None, dest: Box | None) -> None:
        """Note that the next action waits for a message, and for one that is to leave."""
        if source is not None:
            self._log(source[0], coming=True).waiting(source[1])
        if dest is not None:
            self._log(dest[0], coming=False).waiting(dest[1])

    def _log(self, rank: int, coming: bool) -> Log:
        mine = self._group.rank
        return self._logs[(rank, mine) if coming else (mine, rank)]

    def _wait(self, handle: Handle, rank: int, place: int, coming: bool) -> None:
        log = self._log(rank, coming)
        log.waiting(place)
        handle.wait(self._pause_s)
        log.completed(place)

    @property
    def nbytes(self) -> int:
        """Bytes of all boxes."""
        return sum(int(b.nbytes) for boxes in (self._in, self._out) for b in boxes.values())

    def expect(self, sizes: Mapping[int, Sequence[int]], boxes: int) -> None:
        """Post the first receives of a step; all boxes must be empty.

        Parameters
        ----------
        sizes : mapping of int to sequence of int
            By rank: the bytes of what it will send, in order.
        boxes : int
            How many for each rank.
        """
        for source, wanted in sizes.items():
            self._queue[source] = deque(wanted)
            for place in range(min(boxes, len(wanted))):
                _room(self._in, (source, place), max(wanted), self._device)
                self._post(source, place)

    def _post(self, source: int, place: int) -> None:
        nbytes = self._queue[source].popleft()
        box = self._in[source, place][:nbytes]
        self._coming[source, place] = self._group.irecv(box, source, _TAG)
        log = self._log(source, coming=True)
        log.posted(place, log.sequence, waits=False)

    def arriving(self, source: int, place: int) -> Handle:
        """Return what says whether the message for a box has come; any thread."""
        return self._coming[source, place]

    def open(self, source: int, place: int) -> Any:
        """Wait for the message of a box, and return the box."""
        self._wait(self._coming[source, place], source, place, coming=True)
        return self._in[source, place]

    def empty(self, source: int, place: int) -> None:
        """Let the next message come into a box."""
        if self._queue[source]:
            self._post(source, place)

    def outbox(self, dest: int, place: int, nbytes: int) -> Any:
        """Return a box to write a message of ``nbytes`` into, once the last one has left."""
        self.settle(dest, place)
        return _room(self._out, (dest, place), nbytes, self._device)[:nbytes]

    def send(self, dest: int, place: int, nbytes: int) -> None:
        """Start to send what is in a box."""
        box = self._out[dest, place][:nbytes]
        self._going[dest, place] = self._group.isend(box, dest, _TAG)
        log = self._log(dest, coming=False)
        log.posted(place, log.sequence, waits=False)

    def leaving(self, dest: int, place: int) -> Any:
        """Return what says whether the message in a box has left; any thread."""
        return _Leaving(self._going[dest, place], self._log(dest, coming=False), place)

    def settle(self, dest: int, place: int) -> None:
        """Wait until the message in a box has left."""
        if (dest, place) in self._going:
            self._wait(self._going.pop((dest, place)), dest, place, coming=False)

    def settle_all(self) -> None:
        """Wait until all messages have left."""
        for dest, place in list(self._going):
            self.settle(dest, place)


class _Leaving:
    """A message on its way, and where its end is noted."""

    def __init__(self, handle: Handle, log: Log, place: int) -> None:
        self._handle, self._log, self._place = handle, log, place

    def test(self) -> bool:
        """Return whether it has left."""
        done = self._handle.test()
        if done:
            self._log.completed(self._place)
        return done


def _room(
    boxes: dict[tuple[int, int], Any], key: tuple[int, int], nbytes: int, device: backend.Device
) -> Any:
    known = boxes.get(key)
    if known is None or known.nbytes < nbytes:
        boxes[key] = known = backend.empty((nbytes,), "uint8", device)
    return known
