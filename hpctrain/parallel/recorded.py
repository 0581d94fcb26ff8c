"""What servers record while workers do, brought to the clock of the first worker."""

import time
from typing import Any, NamedTuple

from hpctrain.parallel.trade import Trade

__all__ = ["Recorded", "Servers"]

PINGS = 20


class Recorded(NamedTuple):
    """Events of one server.

    Attributes
    ----------
    events : list
    offset : int, ns
        How far its clock is ahead of that of the first worker.
    """

    events: list[Any]
    offset: int


class Servers:
    """Lets the servers record; the first worker asks, the others need not call.

    Parameters
    ----------
    trade : Trade
    """

    def __init__(self, trade: Trade) -> None:
        self._trade = trade

    def __len__(self) -> int:
        return self._trade.terms.servers

    def record(self, on: bool) -> None:
        """Begin or end to record."""
        self._trade.ask("record", on=on)

    def take(self) -> list[Recorded]:
        """Return what each has recorded, on the first worker; nothing on the others."""
        events = self._trade.ask("events")
        found = [(2**63, 0)] * len(events)
        for _ in range(PINGS if events else 0):
            start = time.perf_counter_ns()
            clocks = self._trade.ask("clock")
            trip = time.perf_counter_ns() - start
            found = [
                min(best, (trip, clock - start - trip // 2))
                for best, clock in zip(found, clocks, strict=True)
            ]
        return [Recorded(e, offset) for e, (_, offset) in zip(events, found, strict=True)]
