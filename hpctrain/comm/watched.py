"""Exchanges that write into a log when they start, are waited for, and are complete."""

from collections.abc import Sequence

from hpctrain.comm.progress import Log
from hpctrain.comm.request import Handle
from hpctrain.comm.transfer import Pending

__all__ = ["noted", "slice_names"]


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
