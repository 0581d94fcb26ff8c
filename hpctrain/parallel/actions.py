"""What the items of a step do: each verb of `hpctrain.parallel.recipe` is a method here."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.comm.group import Group
from hpctrain.comm.progress import Log
from hpctrain.comm.watched import noted
from hpctrain.optim import LossScale, Optimizer, Schedule, clip_scale, finite, sum_of_squares
from hpctrain.parallel.bound import BoundStep
from hpctrain.parallel.exchange import Exchange
from hpctrain.parallel.flat import Slice, joined
from hpctrain.parallel.meter import Meter
from hpctrain.parallel.shards import Sums
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import (
    BAD,
    CORRECT,
    COUNT,
    LOSS,
    RIDERS,
    STOP,
    Options,
    StepResult,
    Work,
)

__all__ = ["Actions", "Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What the items of one part of a step have in common.

    Attributes
    ----------
    number : int
        Of the step.
    work : Work
    bound : BoundStep or None
        None for a rank that has no sample.
    first : bool
        Whether it is the first part of the step.
    stop : bool
        This rank's wish to stop.
    derives : bool
        Whether it makes what is derived from the parameters; later parts find that.
    """

    number: int
    work: Work
    bound: BoundStep | None = None
    first: bool = True
    stop: bool = False
    derives: bool = False


class Actions:
    """Carries out the items; each method runs on the lane that its item names.

    Parameters
    ----------
    state : ModelState
    optimizer : Optimizer
    schedule : Schedule
    options : Options
    exchange : Exchange
    sums : Sums or None
        Where gradients of the parts of a step are added up.
    norms : Group or None
        For the norm of a gradient of which each rank has a part; used by nothing else.
    log : Log, optional
        Where it is noted that it is fetched.

    Attributes
    ----------
    meter : Meter
    scale : LossScale
    results : dict of int to StepResult
        Of steps whose result nobody has asked for yet.
    """

    def __init__(  # noqa: PLR0913 (the parts that meet here)
        self,
        state: ModelState,
        optimizer: Optimizer,
        schedule: Schedule,
        options: Options,
        exchange: Exchange,
        sums: Sums | None,
        norms: Group | None,
        log: Log | None = None,
    ) -> None:
        flat = state.flat
        self.state, self.optimizer, self.schedule = state, optimizer, schedule
        self.options = options
        self.exchange_of, self.sums = exchange, sums
        self.meter = Meter(len(flat.slices))
        self.scale = LossScale(options.loss_scale, dynamic=options.skip)
        self.results: dict[int, StepResult] = {}
        self._sent = flat.grads if sums is None else sums.buffer
        # What the update reads: the sums themselves where these need no rounding.
        same = self._sent.dtype == flat.dtype
        self._grads = self._sent if same else flat.grads
        factors = state.factors()
        self._runs = [flat.runs(piece, factors) for piece in flat.slices]
        self._norms, self._norms_log = norms, log
        # The ranks' shares, added up in their order: the same bits, whatever MPI does.
        self._squares = np.zeros(norms.size if norms else 1)
        self._place = norms.rank if norms else 0
        self._bad = self._skip = False
        self._flags: dict[int, bool] = {}  # by step: whether this rank's gradient was bad
        self._before = options.loss_scale  # the scale of the step that is judged
        self._posted: dict[int, Any] = {}

    def piece(self, index: int) -> Slice:
        """Return a slice by its number."""
        return self.state.flat.slices[index]

    def feed(self, turn: Turn, _: int) -> None:
        """Set the inputs of a part."""
        assert turn.bound is not None, "a part with samples is bound"
        self.exchange_of.note(turn.work, turn.number)
        turn.bound.feed(turn.work, turn.number, self.scale.value)

    def run(self, turn: Turn, index: int) -> None:
        """Run a segment."""
        assert turn.bound is not None, "a part with samples is bound"
        self.meter.segment(index, turn.bound.compute, index, turn.derives)

    def add(self, turn: Turn, index: int) -> None:
        """Add a slice of one part's gradient to the sums."""
        assert self.sums is not None, "sums are kept where parts are added"
        kept = turn.bound.kept if turn.bound is not None else ()
        self.meter.timed(None, self.sums.add, self.piece(index), turn.first, kept)

    def add_last(self, turn: Turn, index: int) -> None:
        """Add a slice of the last part's gradient, and what is made of all parts at once."""
        self.add(turn, index)
        assert self.sums is not None, "sums are kept where parts are added"
        self.meter.timed(None, self.sums.close, self.piece(index))

    def look(self, turn: Turn, index: int) -> None:
        """Note whether a slice of this rank's gradient is not finite, and then clear it.

        For what compression owes of this slice would never be finite again.
        """
        piece, riders = self.piece(index), len(self.state.flat.riders)
        start = piece.start if index else riders
        if not finite(self._sent[start : piece.stop]):
            self._sent[start : piece.stop] = 0
            self._bad = True

    def ride(self, turn: Turn, _: int) -> None:
        """Write what travels with the gradient."""
        assert turn.bound is not None, "a part with samples is bound"
        turn.bound.ride(turn.work, turn.stop)

    def flag(self, turn: Turn, _: int) -> None:
        """Let the word whether this rank's gradient is bad travel too."""
        self._sent[BAD] = self._flags[turn.number] = self._bad
        self._bad = False

    def nothing(self, turn: Turn, _: int) -> None:
        """Take part in a batch of which this rank has no sample."""
        self._sent[...] = 0
        self._sent[STOP] = turn.stop

    def exchange(self, turn: Turn, index: int) -> Any:
        """Start the exchange of a slice."""
        return self.meter.under_way(self.exchange_of.begin(self.piece(index), turn.number))

    def sent(self, turn: Turn, _: int) -> None:
        """Know that all slices have been sent."""

    def post(self, turn: Turn, index: int) -> None:
        """Start the exchange of a slice, to be finished on this lane."""
        self._posted[index] = self.exchange_of.begin(self.piece(index), turn.number)

    def finish(self, turn: Turn, index: int) -> None:
        """Wait for a slice."""
        pending = self._posted.pop(index)
        if pending is not None:
            self.meter.exposed(index, pending.wait, self.options.pause_s)

    def settle(self, turn: Turn, index: int) -> None:
        """Round the sums of a slice to the dtype of the parameters."""
        assert self.sums is not None, "sums are kept where they are rounded"
        self.meter.timed(index, self.sums.settle, self.piece(index))

    def judge(self, turn: Turn, _: int) -> None:
        """Decide whether the step counts; equal on all ranks, from what all have received."""
        finite_sum = math.isfinite(math.fsum(self._squares))
        self._skip = bool(self._grads[BAD] > 0) or not finite_sum
        self._before = self.scale.value
        self.scale.update(good=not self._skip)
        if self.scale.value != self._before:
            self.exchange_of.rescale(self.scale.value / self._before)

    def measure(self, turn: Turn, _: int) -> None:
        """Find the sum of the squares of this rank's part of the gradient."""
        riders = len(self.state.flat.riders)
        spans = [self.exchange_of.own(piece) for piece in self.state.flat.slices]
        self._squares[:] = 0
        self._squares[self._place] = sum(
            sum_of_squares(self._grads[max(a, riders) : b]) for a, b in joined(spans)
        )

    def share_norm(self, turn: Turn, _: int) -> Any:
        """Start to fetch the squares of all ranks."""
        assert self._norms is not None, "ranks with parts share their norms"
        pending, key = self._norms.iallreduce(self._squares), len(self.state.flat.slices)
        return noted(pending, self._norms_log, key, "norm of the gradient")

    def wait_for_norm(self, turn: Turn, index: int) -> None:
        """Fetch the squares of all ranks, on this lane."""
        self.meter.exposed(-1, self.share_norm(turn, index).wait, self.options.pause_s)

    def update(self, turn: Turn, index: int) -> None:
        """Update a slice of the parameters, or this rank's part of it."""
        if not self._skip:
            self.meter.update(index, self._update, index, turn.number)

    def gather(self, turn: Turn, index: int) -> Any:
        """Start to fetch the parts of a slice that others have updated."""
        return self.meter.under_way(self.exchange_of.gather(self.piece(index)))

    def post_gather(self, turn: Turn, index: int) -> None:
        """Start to fetch a slice, to be finished on this lane."""
        self._posted[index] = self.exchange_of.gather(self.piece(index))

    def finish_gather(self, turn: Turn, index: int) -> None:
        """Wait for the parts of a slice that others have updated."""
        self.finish(turn, index)

    def keep(self, turn: Turn, _: int) -> None:
        """Keep what came of the step until somebody asks for it."""
        riders = backend.to_host(self._grads[:RIDERS])
        self.results[turn.number] = StepResult(
            turn.number,
            float(riders[LOSS]),
            float(riders[CORRECT]),
            bool(riders[STOP] > 0),
            round(float(riders[COUNT])),
            round(float(riders[BAD])),
            self._skip,
            self._flags.pop(turn.number, False),
            self._before,
            self.scale.value,
        )

    def _update(self, index: int, number: int) -> None:
        flat, state, factor = self.state.flat, self.state, 1.0 / self._before
        if self.options.clip_norm:
            factor = clip_scale(math.fsum(self._squares), self.options.clip_norm, factor)
        lr = self.schedule.lr(number)
        first, end = self.exchange_of.own(self.piece(index))
        shift = state.shift(index)
        for start, stop, (lr_mult, wd_mult) in self._runs[index]:
            a, b = max(start, first), min(stop, end)
            if a >= b:
                continue
            self.optimizer.update(
                flat.weights[a:b],
                self._grads[a:b],
                {name: array[a - shift : b - shift] for name, array in state.optimizer.items()},
                lr=lr * lr_mult,
                step=number - self.scale.skipped,
                weight_decay=self.optimizer.weight_decay * wd_mult,
                scale=factor,
            )
