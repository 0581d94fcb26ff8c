"""A rank's share of a scattered graph bound to arrays, and the messages between the shares.

Both ends of a message note it, when it is sent and when its receive is posted: so a report of a
stall says which end has not come to it, and what it was to bring.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from hpctrain import backend
from hpctrain.comm.group import Group
from hpctrain.comm.progress import Log
from hpctrain.comm.request import Handle
from hpctrain.comm.watched import Logs
from hpctrain.graph.execute import Executor
from hpctrain.graph.pool import Pool
from hpctrain.parallel.scattered import Mail, Share

__all__ = ["BoundShare", "Wire"]

_TAGS = 2**14  # that any MPI has; messages of one pair keep their order anyway
_PAUSE_S = 5e-5


class _Noted(NamedTuple):
    """A message under way, and where its end is noted."""

    handle: Handle
    log: Log
    key: int

    def gone(self) -> bool:
        done = self.handle.test()
        if done:
            self.log.completed(self.key)
        return done

    def wait(self) -> None:
        self.log.waiting(self.key)
        self.handle.wait(_PAUSE_S)
        self.log.completed(self.key)


class Wire:
    """Messages under way to and from one rank.

    Parameters
    ----------
    group : Group
        Whose point-to-point messages belong to this alone.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._leaving: deque[_Noted] = deque()
        self._logs: Mapping[tuple[int, int], Log] = defaultdict(Log)  # that nobody reads

    def watch(self, logs: Logs | None) -> None:
        """Note messages from now on, or no more; collective, with nothing under way."""
        unread: Mapping[tuple[int, int], Log] = defaultdict(Log)
        self._logs = unread if logs is None else logs.pairs(self._group, "value")

    def send(self, mail: Mail, array: Any) -> None:
        """Start to send an array, which nobody writes again."""
        handle = self._group.isend(array, mail.peer, mail.number % _TAGS)
        self._leaving.append(self._noted(handle, mail, (self._group.rank, mail.peer)))
        self.advance()

    def receive(self, mail: Mail, array: Any) -> _Noted:
        """Start to receive into an array."""
        handle = self._group.irecv(array, mail.peer, mail.number % _TAGS)
        return self._noted(handle, mail, (mail.peer, self._group.rank))

    def _noted(self, handle: Handle, mail: Mail, ends: tuple[int, int]) -> _Noted:
        log = self._logs[ends]
        log.posted(mail.number, f"{log.sequence} ({mail.name})", waits=False)
        return _Noted(handle, log, mail.number)

    def advance(self) -> None:
        """Let go of messages that have left, and MPI work on the others."""
        for _ in range(len(self._leaving)):
            message = self._leaving.popleft()
            if not message.gone():
                self._leaving.append(message)

    def wait(self, message: _Noted) -> None:
        """Wait for a message without keeping the core from other ranks."""
        self.advance()
        message.wait()

    def settle(self) -> None:
        """Wait until all messages have left."""
        while self._leaving:
            self._leaving.popleft().wait()


class BoundShare:
    """A share that can be run.

    Parameters
    ----------
    share : Share
    leaves : mapping of int to array
        Of this rank, by the numbers of the whole graph.
    device : Device
    pool : Pool
        Working memory; values that come and go have arrays of their own in each run.
    """

    def __init__(
        self, share: Share, leaves: Mapping[int, Any], device: backend.Device, pool: Pool
    ) -> None:
        self.share, self._device = share, device
        own = [leaves[v] for v in share.leaves]
        self._executor = Executor(share.plan, own, None, device, pool)

    def run(self, given: Mapping[int, Any], wire: Wire) -> dict[int, Any]:
        """Carry out the share, and its part of the exchange.

        Parameters
        ----------
        given : mapping of int to array
            At least what `Share.fed` names; not to be changed while the results are in use.
        wire : Wire

        Returns
        -------
        dict of int to array
            Results, and what was received, by the numbers of the whole graph.
        """
        share, graph = self.share, self.share.plan.graph
        come = {mail.value: self._empty(mail.value) for mail in share.received}
        coming = {mail: wire.receive(mail, come[mail.value]) for mail in share.received}
        outputs = [self._empty(v) for v in graph.outputs]
        found = {**dict(zip(share.results, outputs, strict=True)), **come}
        self._executor.feed(
            [*(given[v] for v in share.fed), *(come[mail.value] for mail in share.received)],
            outputs,
        )
        for leg in share.legs:
            for mail in leg.needs:
                wire.wait(coming[mail])
            if leg.start < leg.stop:
                self._executor.run(leg.start, leg.stop)
            for mail in leg.sends:
                wire.send(mail, found[mail.value])
        wire.settle()  # the arrays may be dropped from here on
        self._executor.forget()
        return found

    def _empty(self, value: int) -> Any:
        spec = self.share.plan.graph.specs[value]
        return backend.empty(spec.shape, spec.dtype, self._device)
