"""Exchanges that write into a log when they start, are waited for, and are complete."""

from collections.abc import Sequence

from hpctrain.comm.group import Group
from hpctrain.comm.progress import INSIDE, Log, Wait
from hpctrain.comm.request import Handle
from hpctrain.comm.transfer import Pending
from hpctrain.comm.wording import ranks

__all__ = ["Logs", "noted", "slice_names"]


class Logs:
    """The logs of one rank: of the sequences that all ranks have, and of those of some.

    Parameters
    ----------
    rank : int
        This one, of all.

    Attributes
    ----------
    gradient, inside : Log
        Of slices; and of what all ranks wait for inside a step's computation.
    """

    def __init__(self, rank: int = 0) -> None:
        self.gradient, self.inside = Log(), Log(INSIDE)
        self._rank = rank
        self._every: tuple[Log, ...] = (self.gradient, self.inside)  # replaced, never changed

    def _kept(self, log: Log) -> Log:
        self._every = (*self._every, log)
        return log

    def among(self, group: Group, what: str, by_step: bool = False) -> Log:
        """Return a log of what the ranks of ``group`` start in one order; collective over it.

        Parameters
        ----------
        group : Group
        what : str
            The kind of exchange; a group has one log of a kind.
        by_step : bool
            See `Log`.
        """
        return self._kept(Log(f"{what} of {ranks(group.allgather_obj(self._rank))}", by_step))

    def pairs(self, group: Group, what: str = "parcel") -> dict[tuple[int, int], Log]:
        """Return logs of messages between two ranks of ``group``; collective over it.

        Parameters
        ----------
        group : Group
        what : str
            Of a message; two ranks have one log of a kind.

        Returns
        -------
        dict of (source, dest) to Log
            By ranks of the group, one of them this one. The log's sequence is its name.
        """
        every = group.allgather_obj(self._rank)
        found = {}
        for other in set(range(group.size)) - {group.rank}:
            for ends in (other, group.rank), (group.rank, other):
                source, dest = (every[end] for end in ends)
                found[ends] = self._kept(Log(f"{what} from rank {source} to rank {dest}"))
        return found

    def waits(self, since: float, now: float) -> list[Wait]:
        """Return the oldest exchange of each sequence that this rank waits for."""
        found = [log.oldest(since, now) for log in self._every]
        return [wait for wait in found if wait is not None]

    def started(self) -> dict[str, int]:
        """Return how many exchanges of each sequence this rank has started."""
        return {log.sequence: log.started for log in self._every}

    def busy(self) -> dict[str, int]:
        """Return by sequence the oldest started slice that nobody here waits for."""
        found = {log.sequence: log.busy() for log in self._every if log.by_step}
        return {name: number for name, number in found.items() if number is not None}


def slice_names(parameters: Sequence[Sequence[int]], names: Sequence[str]) -> list[str]:
    """Name slices for messages, by their number and the parameters in them.

    Parameters
    ----------
    parameters : sequence of sequence of int
        For each slice the parameters that it holds, in order.
    names : sequence of str
        Of all parameters.

    Examples
    --------
    >>> slice_names([[0], [0, 1, 2]], ["weight", "bias", "gamma"])
    ['slice 1 of 2 (weight)', 'slice 2 of 2 (weight to gamma)']
    """
    found = []
    for number, inside in enumerate(parameters, 1):
        ends = dict.fromkeys(names[i] for i in (inside[0], inside[-1])) if inside else []
        what = f" ({' to '.join(ends)})" if ends else ""
        found.append(f"slice {number} of {len(parameters)}{what}")
    return found


def noted(pending: Pending | None, log: Log | None, key: int, name: str) -> Pending | None:
    """Write into ``log`` that an exchange has been started, and later when it is complete.

    Parameters
    ----------
    pending : Pending or None
        What was started; None if there is nothing to wait for.
    log : Log or None
        Of `hpctrain.comm.stall.Watch`; None to note nothing.
    key : int
        The same on every rank, and started once in each step.
    name : str
        Of the exchange, for the report.

    Returns
    -------
    Pending or None
        To be used instead of ``pending``. Costs a few microseconds for each exchange.
    """
    if pending is None or log is None:
        return pending
    log.posted(key, name, waits=False)
    return _Noted(pending, log, key)


class _Noted:
    """An exchange of which it is noted when somebody waits for it, and its end."""

    __slots__ = ("_key", "_log", "_open", "_pending", "_waits")

    def __init__(self, pending: Pending, log: Log, key: int) -> None:
        self._pending, self._log, self._key = pending, log, key
        self._open, self._waits = True, False

    def test(self) -> bool:
        self._wait()
        done = self._pending.test()
        if done:
            self._complete()
        return done

    def wait(self, pause_s: float = 0.0) -> None:
        self._wait()
        self._pending.wait(pause_s)
        self._complete()

    def handles(self) -> Sequence[Handle]:
        return self._pending.handles()

    def _wait(self) -> None:
        if not self._waits:
            self._waits = True
            self._log.waiting(self._key)

    def _complete(self) -> None:
        # Once: by a later call the same key may be under way again.
        if self._open:
            self._open = False
            self._log.completed(self._key)
