"""A transport that writes into a log what it starts and what is complete."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain.backend import Array
from hpctrain.comm.progress import Log
from hpctrain.comm.transfer import Pending
from hpctrain.comm.transport import State, Transport

__all__ = ["Watched", "slice_names"]


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


class Watched:
    """Another transport, with each exchange noted in a log for the report of stalls.

    Parameters
    ----------
    transport : Transport
        Does the work.
    log : Log
        Of `hpctrain.comm.stall.Watch`.
    names : sequence of str
        What the keys stand for; see `slice_names`.

    Notes
    -----
    Costs a few microseconds for each exchange.
    """

    def __init__(self, transport: Transport, log: Log, names: Sequence[str]) -> None:
        self.rank, self.size = transport.rank, transport.size
        self.inner = transport
        self._log = log
        self._names = names
        self._parameters = [f"{name}, the new parameters" for name in names]

    def part(self, count: int) -> slice:
        """Return the part of ``count`` elements whose sum this rank makes."""
        return self.inner.part(count)

    def allreduce(self, array: Array, key: int, exact: int = 0) -> Pending:
        """Sum over all ranks, in place."""
        pending = self.inner.allreduce(array, key, exact)
        return self._noted(pending, key, self._names[key])

    def reduce_scatter(self, array: Array, key: int, exact: int = 0) -> Pending:
        """Sum over all ranks; every rank gets its part."""
        pending = self.inner.reduce_scatter(array, key, exact)
        return self._noted(pending, key, self._names[key])

    def allgather(self, array: Array, key: int) -> Pending:
        """Bring the parts of all ranks to all."""
        pending = self.inner.allgather(array, key)
        # Numbered apart: the sum of a slice has its own count of steps.
        return self._noted(pending, ~key, self._parameters[key])

    def reset(self) -> None:
        """Forget what is kept for each key."""
        self.inner.reset()

    def state(self) -> State:
        """Return what the other transport owes."""
        return self.inner.state()

    def load(self, state: dict[str, np.ndarray[Any, np.dtype[Any]]]) -> None:
        """Continue from what `state` returned."""
        self.inner.load(state)

    def _noted(self, pending: Pending, key: int, name: str) -> "_Noted":
        self._log.posted(key, name, waits=False)
        return _Noted(pending, self._log, key)


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

    def _wait(self) -> None:
        if not self._waits:
            self._waits = True
            self._log.waiting(self._key)

    def _complete(self) -> None:
        # Once: by a later call the same key may be under way again.
        if self._open:
            self._open = False
            self._log.completed(self._key)
