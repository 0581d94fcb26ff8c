"""Data parallelism: each rank computes gradients on its part of a batch, in step.

One training step, as it is pushed to the engine (S: segment, X: exchange, U: update):

    compute   S0 S1 S2 S3 S4 S5 . U2 U1 U0 | S0 S1 ...     the next step starts at once
    comm               X2    X1    X0                      in one order on every rank

A segment reads slices of the parameters and writes slices of the gradient; the engine
orders everything by these. Nothing here waits, except for what `result` asks for.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.autograd import Spec
from hpctrain.comm.group import Group
from hpctrain.engine import Engine
from hpctrain.errors import EngineError
from hpctrain.graph.cached import Statistics
from hpctrain.graph.plan import Plan
from hpctrain.graph.segments import Segment
from hpctrain.optim import Optimizer, Schedule, clip_scale, sum_of_squares
from hpctrain.parallel.bound import BoundStep, BoundSteps
from hpctrain.parallel.exchange import AllReduce, Alone, Exchange
from hpctrain.parallel.flat import Slice
from hpctrain.parallel.meter import Meter
from hpctrain.parallel.program import Objective
from hpctrain.parallel.shards import ShardSums, cut_work
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import CORRECT, COUNT, LAG, LOSS, STOP, Options, StepResult, Work

__all__ = ["DataParallel"]


class DataParallel:
    """Pushes training steps to an engine.

    Parameters
    ----------
    objective : Objective
    state : ModelState
        Parameters, gradients, optimizer state of this rank.
    optimizer : Optimizer
    schedule : Schedule
        Learning rate as a function of the step.
    engine : Engine
    group : Group
        The data-parallel ranks; used for the exchange alone.
    options : Options

    Notes
    -----
    A step's gradient is that of the mean loss over the global batch, however it is divided.
    """

    def __init__(  # noqa: PLR0913 (the parts that meet here)
        self,
        objective: Objective,
        state: ModelState,
        optimizer: Optimizer,
        schedule: Schedule,
        engine: Engine,
        group: Group,
        options: Options | None = None,
    ) -> None:
        self.objective = objective
        self.state = state
        self.optimizer = optimizer
        self.schedule = schedule
        self.engine = engine
        self.group = group
        self.options = options or Options()
        self.meter = Meter()
        self.stop = False  # set by whoever wants all ranks to stop
        self.step_number = 0
        flat = state.flat
        self._sums = ShardSums(flat) if self.options.shard else None
        sent = flat.grads if self._sums is None else self._sums.buffer
        self._exchange: Exchange = Alone()
        if group.size > 1:
            self._exchange = AllReduce(group, sent, self.options.pause_s)
        self._bound = BoundSteps(
            objective, state, self.options
        )  # one runs at a time, as `_arena` says
        self._order: list[int] = []
        # Slices of nothing but padding, which no segment makes final.
        self._empty = [s.index for s in flat.slices if s.index and not s.parameters]
        factors = state.factors()
        self._runs = [flat.runs(piece, factors) for piece in flat.slices]
        self._parameters = [engine.variable(f"parameters {s.index}") for s in flat.slices]
        self._gradients = [engine.variable(f"gradients {s.index}") for s in flat.slices]
        self._arena = engine.variable("arena")
        self._turn = engine.variable("exchange order")
        self._norm = engine.variable("gradient norm")
        self._ready = [engine.variable(f"result {i}") for i in range(LAG + 1)]
        self._results: dict[int, np.ndarray] = {}
        self._scale = 1.0

    @property
    def variables(self) -> list[Any]:
        """Variables that stand for the parameters and the state, for whoever reads them."""
        return [*self._parameters, self._arena]

    def prepare(self, inputs: Sequence[Spec], targets: Sequence[Spec]) -> None:
        """Capture and plan for a shape of batch; collective the first time.

        The order in which slices are exchanged is that in which rank 0 makes them final. The
        slice with the riders is the last.
        """
        key = (tuple(inputs), tuple(targets))
        bound = self._bound.get(key)
        if not self._order:
            final = [s for segment in bound.segments for s in segment.final]
            order = [*self._empty, *(s for s in final if s != 0), 0]
            self._order = [int(s) for s in self.group.bcast_obj(order, 0)]

    def plan_of_first_shape(self) -> Plan:
        """Return the plan that `prepare` made first."""
        return self._bound.first_plan()

    def statistics(self) -> Statistics:
        """Return how many batches were run and shapes captured, and what that keeps."""
        return self._bound.statistics()

    def step(self, work: Work) -> int:
        """Push one step and return its number, for `result`; after `prepare`."""
        if not self._order:
            raise EngineError(
                "step: the order of the exchange is not known; call prepare on all ranks before"
            )
        number = self.step_number
        self.step_number += 1
        begun = self._push_gradient(work, number) if work.count else self._push_nothing(work)
        self._push_exchanges(begun, {s.index for s in self.state.flat.slices})
        if not self.options.overlap:
            for index in self._order:
                self._push_finish(self.state.flat.slices[index])
        self._push_settle()
        if self.options.clip_norm:
            self._push_norm()
        for index in self._order:
            self._push_update(self.state.flat.slices[index], number)
        self._push_result(number)
        return number

    def result(self, number: int) -> StepResult:
        """Wait for a step and return its sums; only the last `LAG` + 1 steps are kept."""
        self.engine.wait(self._ready[number % (LAG + 1)])
        riders = self._results.pop(number)
        return StepResult(
            number,
            float(riders[LOSS]),
            float(riders[CORRECT]),
            bool(riders[STOP] > 0),
            round(float(riders[COUNT])),
        )

    def _push_gradient(self, work: Work, number: int) -> int:
        """Push the segments; return how many exchanges could be pushed between them."""
        final = set(self._empty)
        begun = 0
        parts = cut_work(work, self.options.shard)
        for place, part in enumerate(parts):
            bound = self._bound.get(part.specs())
            self._push_feed(bound, part, number)
            for segment in bound.segments:
                self._push_segment(bound, segment)
                self._push_sums([s for s in segment.final if s], place == 0)
                if part is parts[-1]:
                    final.update(segment.final)
                    begun = self._push_exchanges(begun, final - {0})
            self._push_riders(bound, part)
            self._push_sums([0], place == 0)
        return begun

    def _push_sums(self, final: Sequence[int], first: bool) -> None:
        """Add the slices that are final for one shard to the sums over shards."""
        if self._sums is None:
            return
        for index in final:
            add = partial(self._sums.add, self.state.flat.slices[index], first)
            work = partial(self.meter.timed, add)
            self.engine.push(work, (), (self._gradients[index],), name=f"add shard {index}")

    def _push_feed(self, bound: BoundStep, work: Work, number: int) -> None:
        reads = () if work.variable is None else (work.variable,)
        feed = partial(bound.feed, work, number)
        self.engine.push(feed, reads, (self._arena,), name="feed")

    def _push_segment(self, bound: BoundStep, segment: Segment) -> None:
        self.engine.push(
            partial(self.meter.timed, bound.run.run, segment.start, segment.stop),
            [self._parameters[s] for s in segment.reads],
            [self._arena, *(self._gradients[s] for s in segment.writes)],
            name=segment.name,
        )

    def _push_exchanges(self, begun: int, final: set[int]) -> int:
        """Push the exchanges that are next in order and final; return how many are pushed."""
        while begun < len(self._order) and self._order[begun] in final:
            self._push_exchange(self.state.flat.slices[self._order[begun]])
            begun += 1
        return begun

    def _push_exchange(self, piece: Slice) -> None:
        overlap = self.options.overlap
        work = self._whole_exchange if overlap else self._exchange.begin
        self.engine.push(
            partial(work, piece),
            (),
            (self._gradients[piece.index], self._turn),
            lane="comm" if overlap else "compute",
            name=f"{'exchange' if overlap else 'post'} {piece.index}",
        )

    def _whole_exchange(self, piece: Slice) -> None:
        with self.meter.exchanging():
            self._exchange.begin(piece)
            self._exchange.finish(piece)

    def _push_finish(self, piece: Slice) -> None:
        self.engine.push(
            partial(self.meter.exposed, self._exchange.finish, piece),
            (),
            (self._gradients[piece.index], self._turn),
            name=f"finish {piece.index}",
        )

    def _push_riders(self, bound: BoundStep, work: Work) -> None:
        reads = [self._arena] if work.variable is None else [self._arena, work.variable]
        ride = partial(bound.ride, work, self.stop)
        self.engine.push(ride, reads, (self._gradients[0],), name="riders")

    def _push_nothing(self, work: Work) -> int:
        """Take part in a batch of which this rank has no sample; no exchange is pushed yet."""
        stop = self.stop

        def zero() -> None:
            sent = self.state.flat.grads if self._sums is None else self._sums.buffer
            sent[...] = 0
            sent[STOP] = stop

        reads = () if work.variable is None else (work.variable,)
        self.engine.push(zero, reads, (self._arena, *self._gradients), name="no samples")
        return 0

    def _push_settle(self) -> None:
        """Round the sums over shards to the dtype of the parameters."""
        if self._sums is None:
            return
        for index in self._order:
            settle = partial(self._sums.settle, self.state.flat.slices[index])
            work = partial(self.meter.timed, settle)
            self.engine.push(work, (), (self._gradients[index],), name=f"settle {index}")

    def _push_norm(self) -> None:
        self.engine.push(self._measure, self._gradients, (self._norm,), name="norm")

    def _measure(self) -> None:
        """Find the factor that brings the gradient to the norm allowed; equal on all ranks."""
        flat = self.state.flat
        squares = sum_of_squares(flat.grads[len(flat.riders) :])
        self._scale = clip_scale(squares, self.options.clip_norm)

    def _push_update(self, piece: Slice, number: int) -> None:
        reads = [self._gradients[piece.index]]
        if self.options.clip_norm:
            reads.append(self._norm)
        self.engine.push(
            partial(self.meter.timed, self._update, piece, number),
            reads,
            (self._parameters[piece.index],),
            name=f"update {piece.index}",
        )

    def _update(self, piece: Slice, number: int) -> None:
        flat, state = self.state.flat, self.state
        lr = self.schedule.lr(number)
        for start, stop, (lr_mult, wd_mult) in self._runs[piece.index]:
            self.optimizer.update(
                flat.weights[start:stop],
                flat.grads[start:stop],
                {name: array[start:stop] for name, array in state.optimizer.items()},
                lr=lr * lr_mult,
                step=number,
                weight_decay=self.optimizer.weight_decay * wd_mult,
                scale=self._scale,
            )

    def _push_result(self, number: int) -> None:
        def keep() -> None:
            self._results[number] = backend.to_host(self.state.flat.riders).copy()

        self.engine.push(
            keep, (self._gradients[0],), (self._ready[number % (LAG + 1)],), name="result"
        )
