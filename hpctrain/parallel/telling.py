"""What ranks that make one gradient together tell each other in each step: the riders.

Each exchanges its part of the gradient with other ranks, and hears the riders of these only.
"""

from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.comm.group import Group
from hpctrain.comm.request import Handle
from hpctrain.parallel.actions import Actions, Turn
from hpctrain.parallel.work import BAD, RIDERS, STOP

__all__ = ["Telling"]


class Telling(Actions):
    """Actions of ranks of which each has a part of a replica; made like `Actions`."""

    def meet(self, line: Group, leads: bool = True) -> None:
        """Learn who has the other parts of this replica.

        Parameters
        ----------
        line : Group
            All of them, for what `tell` sums; used by nothing else.
        leads : bool
            Whether losses and counts of this rank go into the sums: others may have the same.
        """
        self._line, self._leads = line, leads
        self._told = np.zeros(RIDERS)
        self._telling = Handle()

    def tell(self, turn: Turn, _: int) -> None:
        """Start to sum what all parts have to tell."""
        mine = backend.to_host(self._grads[:RIDERS])
        self._told[:] = mine if self._leads else 0
        self._told[[STOP, BAD]] = mine[[STOP, BAD]]
        self._telling = self._line.iallreduce(self._told)

    def told(self, turn: Turn, _: int) -> Any:
        """Look after these sums."""
        return _Then(self._telling, self._heard)

    def wait_told(self, turn: Turn, _: int) -> None:
        """Wait for these sums on this lane."""
        self.meter.exposed(0, self._telling.wait, self.options.pause_s)
        self._heard()

    def _heard(self) -> None:
        xp = backend.module_of(self._grads)
        self._grads[:RIDERS] = xp.asarray(self._told, self._grads.dtype)


class _Then:
    """A message under way, and what is done when it has come."""

    def __init__(self, pending: Handle, then: Any) -> None:
        self._pending, self._then = pending, then

    def test(self) -> bool:
        """Return whether it has come, and all is done."""
        done = self._pending.test()
        if done:
            self._then()
        return done
