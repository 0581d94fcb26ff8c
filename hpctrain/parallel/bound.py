"""A training plan for one shape of batch, bound to the flat buffers and cut into segments."""

from functools import partial
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.graph.cached import Statistics
from hpctrain.graph.execute import Executor
from hpctrain.graph.pool import Pool
from hpctrain.graph.recent import Recent
from hpctrain.graph.segments import cut
from hpctrain.graph.strips import strips_of
from hpctrain.parallel.program import Objective, training_plan
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import CORRECT, COUNT, LOSS, STOP, Options, Work

__all__ = ["BoundStep", "BoundSteps"]

DRAWS = 2**20  # numbers of a stream's counter that one step may use


class BoundStep:
    """One shape of batch, ready to run.

    Parameters
    ----------
    objective : Objective
    state : ModelState
        Gradients are written straight into its flat buffer.
    specs : (specs of the inputs, specs of the targets)
    pool : Pool
        Working memory, for all shapes together.
    options : Options
        What may be kept for the backward part, and whether kernels are fused.
    early : bool
        Compute large gradients in strips, slice by slice, so that the first can leave early.
    """

    def __init__(
        self,
        objective: Objective,
        state: ModelState,
        specs: Any,
        pool: Pool,
        options: Options,
        early: bool = False,
    ) -> None:
        flat = state.flat
        self.state = state
        self._together = objective.together
        self.plan = training_plan(
            objective,
            specs,
            state.leaves,
            state.trained,
            state.device,
            options.memory,
            options.fuse,
        )
        graph = self.plan.graph
        self.losses = backend.empty(
            graph.specs[graph.outputs[0]].shape, flat.dtype, state.device
        )
        self.correct = backend.empty((), flat.dtype, state.device)
        outputs = [self.losses, self.correct, *(t.grad.value for t in state.trained)]
        leaves = [t.value for t in state.leaves]
        rows = {graph.outputs[2 + p]: r for p, r in flat.row_cuts().items()} if early else {}
        strips = strips_of(self.plan, {value: r.edges for value, r in rows.items()})
        outs = dict(enumerate(outputs))
        self.run = Executor(self.plan, leaves, outs, state.device, pool, strips)
        where = flat.where()
        leaf_of = dict(zip((id(t) for t in state.leaves), graph.leaves, strict=True))
        read = {leaf_of[id(t)]: w for t, w in zip(state.trained, where, strict=True)}
        self.items: dict[str, Any] = {}  # of a part of a step, by its role
        written = dict(zip(graph.outputs[2:], where, strict=True))
        self.segments = cut(self.plan, read, written, strips, lambda v, s: rows[v].slices(s))

    def feed(self, work: Work, step: int, scale: float = 1.0) -> None:
        """Set the inputs of the run of ``step``, and let random draws go by it.

        The loss is multiplied by ``scale``; what `ride` writes of it is not.

        By the step, not by how often this rank has drawn: a rank may have no sample of a
        batch. And by the row in the global batch.
        """
        if self._together is not None:
            self._together.present = work.count > 0
        weight = np.asarray(scale / work.global_count, self.state.flat.dtype)
        for stream in self.state.streams:
            stream.value[1:] = step * DRAWS, work.row
        arrays = [*work.inputs, *work.targets, weight]
        self.run.feed([backend.to_device(a, self.state.device) for a in arrays])

    def ride(self, work: Work, stop: bool) -> None:
        """Write what travels with the gradient."""
        riders = self.state.flat.riders
        riders[LOSS] = self.losses.sum()
        riders[CORRECT] = self.correct
        riders[STOP] = stop
        riders[COUNT] = work.count


class BoundSteps:
    """The shapes of batches met lately, in one piece of working memory.

    Parameters
    ----------
    objective : Objective
    state : ModelState
    options : Options
    early : bool
        See `BoundStep`.

    Notes
    -----
    Only one of them may run at a time. A step that was dropped goes on if it is under way.
    """

    def __init__(
        self, objective: Objective, state: ModelState, options: Options, early: bool = False
    ) -> None:
        self._objective, self._state, self._options = objective, state, options
        self._early = early
        self._kept: Recent[BoundStep] = Recent()
        self._pool, self._calls = Pool(), 0

    def get(self, specs: Any) -> BoundStep:
        """Return what runs batches of ``specs``; captured anew if it is not there."""
        self._calls += 1
        parts = self._objective, self._state, specs, self._pool, self._options, self._early
        return self._kept.get(specs, partial(BoundStep, *parts))

    def first(self) -> BoundStep:
        """Return the step of the shape that was used longest ago: at the start the first."""
        return next(iter(self._kept))

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        return Statistics(self._calls, self._kept.made, len(self._kept), self._pool.nbytes)
