"""The norm of a whole gradient of which each server has a part, and whether it is finite."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from hpctrain.comm.group import Group
from hpctrain.engine import Engine, Variable
from hpctrain.parallel.served import Parts
from hpctrain.parallel.work import BAD

__all__ = ["Norm"]


class Norm:
    """Puts together what the servers have of the norm of a step's gradient.

    Parameters
    ----------
    parts : Parts
        Learn what comes of it: the step's loss scale, and whether it is left out.
    engine : Engine
    peers : Group
        All servers; used by nothing else.

    Attributes
    ----------
    variable : Variable
        Stands for it in the engine.
    squares : ndarray, shape (slices,)
        By slice the sum of the squares of this server's part.
    """

    def __init__(self, parts: Parts, engine: Engine, peers: Group) -> None:
        self._parts, self._engine, self._peers = parts, engine, peers
        self.variable = engine.variable("norm")
        self.squares = np.zeros(len(parts.spans))
        self._figures = np.zeros((peers.size, 2))  # of each server: squares, bad ranks

    @property
    def whole(self) -> float:
        """The sum of the squares of the whole gradient."""
        return math.fsum(self._figures[:, 0])

    def push(self, slots: Sequence[Variable]) -> None:
        """Push what finds it, when the slices with these variables are summed."""
        push, norm = self._engine.push, self.variable
        push(self._measure, slots, (norm,), name="norm")
        if self._peers.size > 1:
            start = partial(self._peers.iallreduce, self._figures)
            push(start, (), (norm,), "comm", name="share norm", deferred=True)
        push(self._judge, (), (norm,), name="judge")

    def _measure(self) -> None:
        """Put together what this server has."""
        grads, figures = self._parts.state.flat.grads, self._figures
        figures[:] = 0
        bad = grads[BAD] if self._peers.rank == 0 else 0.0  # who has the riders
        figures[self._peers.rank] = math.fsum(self.squares), bad

    def _judge(self) -> None:
        """Decide whether the step counts; the same on all servers."""
        parts = self._parts
        parts.news.scale_of_step = parts.scale.value
        if parts.options.skip:
            squares, bad = self._figures.sum(0)
            parts.news.skip = bool(bad > 0) or not math.isfinite(squares)
            parts.scale.update(good=not parts.news.skip)
