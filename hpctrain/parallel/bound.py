"""A training plan for one shape of batch, bound to the flat buffers and cut into segments."""

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.graph.cached import Statistics
from hpctrain.graph.derived import Shelves
from hpctrain.graph.execute import Executor
from hpctrain.graph.pool import Pool
from hpctrain.graph.recent import Recent
from hpctrain.graph.repeated import Once, Repeated
from hpctrain.graph.segments import cut
from hpctrain.graph.strips import strips_of
from hpctrain.parallel.program import Objective, StepDefinition, repeated_plan, training_plan
from hpctrain.parallel.shards import Sums
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import CORRECT, COUNT, LOSS, STOP, Options, Work

__all__ = ["BoundStep", "BoundSteps"]

DRAWS = 2**20  # numbers of a stream's counter that one step may use
HELD_BYTES = 2**18  # of an input that is copied: to bind a kernel takes as long as 2**17


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
    shelves : Shelves, optional
        Where values are kept that are made of parameters alone, for all shapes together, if a
        step has several parts.
    sums : Sums, optional
        Where the gradients of the parts of a step are added up.

    Attributes
    ----------
    derived : frozenset
        What those values are made of.
    kept : collection of int
        Parameters of whose gradients it only keeps the factors, for ``sums``.
    """

    def __init__(  # noqa: PLR0913 (what a step is made of)
        self,
        objective: Objective,
        state: ModelState,
        specs: Any,
        pool: Pool,
        options: Options,
        early: bool = False,
        shelves: Shelves | None = None,
        sums: Sums | None = None,
    ) -> None:
        flat = state.flat
        self.state = state
        self._together = objective.together
        planned = _planned(objective, specs, state, options)
        self.working_bytes = planned.arena_bytes
        self.plan, self.kept = sums.adopt(planned.each) if sums else (planned.each, ())
        graph = self.plan.graph
        self.losses = backend.empty(
            graph.specs[graph.outputs[0]].shape, flat.dtype, state.device
        )
        self.correct = backend.empty((), flat.dtype, state.device)
        outputs = [self.losses, self.correct, *(t.grad.value for t in state.trained)]
        leaves = [t.value for t in state.leaves]
        shelves = shelves or Shelves(state.device)
        self._once = Once(planned.once, planned.keys, leaves, shelves, state.device)
        self.derived = self._once.keys
        leaves += self._once.arrays
        rows = {graph.outputs[2 + p]: r for p, r in flat.row_cuts().items()} if early else {}
        strips = strips_of(self.plan, {value: r.edges for value, r in rows.items()})
        outs = dict(enumerate(outputs))
        self.run = Executor(self.plan, leaves, outs, state.device, pool, strips, HELD_BYTES)
        where = flat.where()
        leaf_of = {id(t): v for t, v in zip(state.leaves, graph.leaves, strict=False)}
        read = {leaf_of[id(t)]: w for t, w in zip(state.trained, where, strict=True)}
        for value, sources in planned.sources.items():
            read[value] = tuple(sorted({s for v in sources for s in read.get(v, ())}))
        self.items: dict[str, Any] = {}  # of a part of a step, by its role
        written = dict(zip(graph.outputs[2:], where, strict=True))
        self.segments = cut(self.plan, read, written, strips, lambda v, s: rows[v].slices(s))
        ends = [0, *(planned.stops[strips[s.stop - 1].node] for s in self.segments)]
        self._spans = list(pairwise(ends))

    def compute(self, index: int, derives: bool) -> None:
        """Run a segment; first what it reads that is derived from parameters, if ``derives``.

        Which is wanted of the first part of a step: the others find it.
        """
        if derives:
            self._once.run(*self._spans[index])
        segment = self.segments[index]
        self.run.run(segment.start, segment.stop)

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
    sums : Sums, optional
        See `BoundStep`.

    Notes
    -----
    Only one of them may run at a time. A step that was dropped goes on if it is under way.
    """

    def __init__(
        self,
        objective: Objective,
        state: ModelState,
        options: Options,
        early: bool = False,
        sums: Sums | None = None,
    ) -> None:
        self._objective, self._state, self._options = objective, state, options
        self._early, self._sums = early, sums
        self._kept: Recent[BoundStep] = Recent()
        self._pool, self._shelves, self._calls = Pool(), Shelves(state.device), 0

    def get(self, specs: Any) -> BoundStep:
        """Return what runs batches of ``specs``; captured anew if it is not there."""
        self._calls += 1
        parts = self._objective, self._state, specs, self._pool, self._options, self._early
        return self._kept.get(specs, partial(BoundStep, *parts, self._shelves, self._sums))

    def of_step(self, parts: Sequence[Work]) -> Iterator[tuple[Work, BoundStep, bool]]:
        """Yield each part of a step, what runs it, and whether that derives values anew."""
        derived = frozenset[Hashable]()
        for part in parts:
            bound = self.get(part.specs())
            yield part, bound, not bound.derived <= derived
            derived |= bound.derived

    def first(self) -> BoundStep:
        """Return the step of the shape that was used longest ago: at the start the first."""
        return next(iter(self._kept))

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        nbytes = self._pool.nbytes + self._shelves.nbytes
        return Statistics(self._calls, self._kept.made, len(self._kept), nbytes)


def _planned(objective: Objective, specs: Any, state: ModelState, options: Options) -> Repeated:
    """Plan one part of a step, which may have several on the same parameters."""
    step = StepDefinition(
        objective, specs, state.leaves, state.trained, state.device, options.memory,
        options.fuse,
    )  # fmt: skip
    if options.accumulate > 1 or options.shard:
        return repeated_plan(step)
    return Repeated.alone(training_plan(step))
