"""What a worker owes its servers: what compression has not sent yet of its gradients."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpctrain.parallel.trade import Trade

__all__ = ["Debts"]

Flat = np.ndarray[Any, np.dtype[np.float32]]


class Debts:
    """Residuals by slice and server; for checkpoints by the methods that a transport has.

    Servers owe nothing then: before a checkpoint workers fetch all parameters as they are.

    Parameters
    ----------
    trade : Trade
        Need not be open before something is owed.
    """

    def __init__(self, trade: Trade) -> None:
        self._trade = trade
        self._owed: dict[tuple[int, int], Flat] = {}

    def of(self, index: int, server: int, size: int) -> Flat:
        """Return what is owed to a server of its part of a slice, to be changed."""
        return self._owed.setdefault((index, server), np.zeros(size, np.float32))

    def rescale(self, factor: float) -> None:
        """Scale all, as gradients are scaled."""
        for owed in self._owed.values():
            owed *= np.float32(factor)

    def state(self) -> dict[str, Flat]:
        """Return copies by name."""
        return {f"server {s}/{i}": owed.copy() for (i, s), owed in self._owed.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned on the same worker of as many."""
        self._owed = {self._key(name): np.array(a, np.float32) for name, a in state.items()}

    def span(self, name: str, count: int, exact: int = 0) -> slice:
        """Return the elements of a slice of ``count`` that ``state()[name]`` is about."""
        index, server = self._key(name)
        return self._span(index, server, exact)

    def take_over(self, owed: Flat, key: int, exact: int = 0) -> None:
        """Owe this worker's share of what all together owe of slice ``key``."""
        for server, (a, b) in enumerate(self._trade.places[key]):
            if a < b:
                part = owed[self._span(key, server, exact)]
                self._owed[key, server] = part / np.float32(self._trade.group.size)

    def _span(self, index: int, server: int, exact: int) -> slice:
        parts = self._trade.places[index]
        start, (a, b) = parts[0][0], parts[server]
        return slice(a - start + (exact if a == start else 0), b - start)

    def _key(self, name: str) -> tuple[int, int]:
        server, _, index = name.removeprefix("server ").partition("/")
        return int(index), int(server)
