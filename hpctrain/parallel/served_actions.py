"""What the items of a step do that only workers with servers have."""

import math
from typing import Any

from hpctrain.optim import clip_scale, sum_of_squares
from hpctrain.parallel.actions import Actions, Turn
from hpctrain.parallel.traded import Traded
from hpctrain.parallel.work import BAD

__all__ = ["ServedActions"]


class ServedActions(Actions):
    """Carries out the items of a worker; see `Actions`."""

    @property
    def _traded(self) -> Traded:
        assert isinstance(self.exchange_of, Traded), "a worker trades"
        return self.exchange_of

    def want(self, turn: Turn, _: int) -> None:
        """Note which rows of tables a part reads."""
        self._traded.rows.note(turn.work, turn.number)

    def ask(self, turn: Turn, index: int) -> Any:
        """Start to fetch the rows of a slice that a step reads."""
        return self.meter.under_way(self._traded.ask(self.piece(index), turn.number))

    def take(self, turn: Turn, index: int) -> None:
        """Take the rows that have come."""
        self.meter.update(index, self._traded.rows.take, self.piece(index))

    def fetch(self, turn: Turn, index: int) -> None:
        """Fetch the rows of a slice that a step reads, on this lane."""
        pending = self._traded.ask(self.piece(index), turn.number)
        if pending is not None:
            self.meter.exposed(index, pending.wait, self.options.pause_s)
        self.take(turn, index)

    def sift(self, turn: Turn, _: int) -> None:
        """Clip this rank's gradient, or leave it out, for no other rank asks for that."""
        traded = self._traded
        if self.scale.value != self._before:  # what is owed still has the scale of before
            traded.rescale(self.scale.value / self._before)
        self._skip, self._before = False, self.scale.value
        share = traded.share(turn.number)
        if not share:
            return
        grad, scale = self._sent[len(self.state.flat.riders) :], share * self._before
        squares = sum_of_squares(grad)
        if self.options.skip:
            self._skip = bool(self._sent[BAD] > 0) or not math.isfinite(squares)
            self._sent[BAD] = self._flags[turn.number] = self._skip
            self.scale.update(good=not self._skip)
        if self._skip:
            grad[...] = 0
        elif self.options.clip_norm:
            factor = clip_scale(squares, self.options.clip_norm, 1 / scale) * scale
            if factor < 1:
                grad *= factor
        traded.leave(turn.number, self._before, self._skip)

    def land(self, turn: Turn, index: int) -> None:
        """Take a slice of the parameters that servers have updated."""
        self.meter.update(index, self.exchange_of.land, self.piece(index))
