"""What the items of a pipeline's step do: the verbs of `hpctrain.parallel.pipeline_recipe`."""

from collections.abc import Hashable
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.comm.request import Handle
from hpctrain.optim import sum_of_squares
from hpctrain.parallel.actions import Turn
from hpctrain.parallel.bound import DRAWS
from hpctrain.parallel.bound_stage import BoundStage
from hpctrain.parallel.bubble import summary
from hpctrain.parallel.parcels import Parcels
from hpctrain.parallel.pipeline_moves import Move, Ties
from hpctrain.parallel.pipeline_times import Span as Timed
from hpctrain.parallel.telling import Telling
from hpctrain.parallel.together import Combine
from hpctrain.parallel.work import CORRECT, COUNT, LOSS, RIDERS, STOP
from hpctrain.trace import Recorder

__all__ = ["PipelineActions"]


class PipelineActions(Telling):
    """Carries out the items of a pipeline; made like `Actions`, then joined to the others.

    Attributes
    ----------
    timed : list of Span
        The actions of the last whole step, by this rank's ``time.perf_counter``.
    steps : dict of int to list of float
        The sums of the actions of each step that nobody has taken yet.
    together : Combine or None
        What layers ask for statistics over all replicas.
    recorder : Recorder or None
        Gets a span for each action while it is enabled, on one track for each stage.
    """

    def join(self, parcels: Parcels, ties: Ties) -> None:
        """Learn how to reach the other ranks of the pipeline; after `meet`.

        Parameters
        ----------
        parcels : Parcels
        ties : Ties
        """
        flat = self.state.flat
        self._parcels, self._ties = parcels, ties
        self._squares = np.zeros(ties.count)
        self._tying: dict[int, Handle] = {}
        self._tally = backend.empty((RIDERS,), self._sent.dtype, flat.device)
        self._begun = set[int]()  # parameters whose sums this step has begun
        self._adds = False  # whether the W that is under way adds to them
        self._derived = frozenset[Hashable]()  # what this step has made of parameters alone
        self.timed: list[Timed] = []
        self.steps: dict[int, list[float]] = {}
        self.together: Combine | None = None
        self.recorder: Recorder | None = None
        self._now: list[Timed] = []

    def measure(self, turn: Turn, _: int) -> None:
        """Find the sums of the squares of this rank's parameters.

        One by one, so that their sum does not depend on where the model is cut.
        """
        self._squares[:] = 0
        flat = self.state.flat
        for piece in flat.slices:
            first, end = self.exchange_of.own(piece)
            for place in piece.parameters if piece.index not in self._ties.elsewhere else ():
                a, b = flat.offsets[place], flat.offsets[place] + flat.sizes[place]
                part = self._grads[max(a, first) : max(first, min(b, end))]
                if self._ties.numbers[place] >= 0:
                    self._squares[self._ties.numbers[place]] += sum_of_squares(part)

    def open(self, move: Move, _: int) -> None:
        """Begin a step."""
        self._tally[...] = 0
        self._now = []
        self._begun.clear()
        self._derived = frozenset()
        self._parcels.expect(move.expected, move.boxes)
        self._parcels.awaiting(*move.awaits)

    def arrive(self, move: Move, _: int) -> Handle:
        """Look after a message that is to come."""
        assert move.inbox is not None, "a message comes"
        return self._parcels.arriving(move.inbox.rank, move.inbox.place)

    def leave(self, move: Move, _: int) -> Any:
        """Look after a message that is on its way."""
        assert move.outbox is not None, "a message goes"
        return self._parcels.leaving(move.outbox.rank, move.outbox.place)

    def forward(self, move: Move, _: int) -> None:
        """Compute F of a micro-batch."""
        stage = self._stage(move)
        message = self._opened(move)
        self.meter.timed(None, self._forward, stage, move, message)

    def _forward(self, stage: BoundStage, move: Move, message: Any) -> None:
        began = perf_counter_ns()
        if message is not None:
            stage.enter(move.slot, message)
            self._emptied(move)
        for stream in self.state.streams:
            stream.value[1:] = move.number * DRAWS, move.work.row
        if not stage.derived <= self._derived:
            stage.derive()
            self._derived |= stage.derived
        stage.forward(move.slot, self._batch(move), self._outbox(move, stage.program.sent))
        self._count(stage, move)
        self._send(move, stage.program.sent.nbytes)
        self._note(move, "F", began)

    def _count(self, stage: BoundStage, move: Move) -> None:
        losses, correct = stage.result(0), stage.result(1)
        if not move.work.count:
            return  # made up
        if losses is not None:
            self._tally[LOSS] += losses.sum()
            self._tally[COUNT] += move.work.count
        if correct is not None:
            self._tally[CORRECT] += correct

    def backward(self, move: Move, _: int) -> None:
        """Compute B of a micro-batch."""
        stage = self._stage(move)
        message = self._opened(move)
        self.meter.timed(None, self._backward, stage, move, message)

    def _backward(self, stage: BoundStage, move: Move, message: Any) -> None:
        began = perf_counter_ns()
        if message is not None:
            stage.answer(move.slot, message)
            self._emptied(move)
        if stage.program.makes_loss:
            stage.weigh(move.slot, self.scale.value / move.work.global_count)
        returned = stage.program.returned
        stage.backward(move.slot, self._batch(move), self._outbox(move, returned))
        if move.action is not None and move.action.kind == "B":
            self._send(move, returned.nbytes)
        self._note(move, "B", began)

    def send(self, move: Move, _: int) -> None:
        """Send the cotangent of a BW, which waits for its W too."""
        self._send(move, self._stage(move).program.returned.nbytes)

    def weigh(self, move: Move, index: int) -> None:
        """Compute a segment of W, all of it if ``index`` is -1, and add its gradients."""
        self.meter.timed(None, self._weigh, self._stage(move), move, index)

    def _weigh(self, stage: BoundStage, move: Move, index: int) -> None:
        began = perf_counter_ns()
        makes = stage.program.whole and index <= 0
        message = self._outbox(move, stage.program.returned) if makes else None
        if index <= 0:
            self._adds = not self._begins(stage, move)
        add = partial(self._add, move.work.count) if self._adds else None
        stage.weight(move.slot, self._batch(move), index, message, add)
        self._note(move, "W", began)

    def _begins(self, stage: BoundStage, move: Move) -> bool:
        """Return whether the gradients of a W are the first of its sums, and note that."""
        same = self._sent is self.state.flat.grads
        if not (same and move.work.count and self._begun.isdisjoint(stage.places)):
            return False
        self._begun.update(stage.places)
        return True

    def _add(self, count: int, place: int, part: Any) -> None:
        """Add the gradient of a micro-batch of ``count`` samples to the sums."""
        sums = self.state.flat.view(self._sent, place)
        if place in self._begun:
            if count:
                sums += part
            return
        sums[...] = part if count else 0
        if count:
            self._begun.add(place)

    def ride(self, turn: Turn, _: int) -> None:
        """Write what travels with the gradient, and end the step's actions."""
        if not self.options.overlap:
            self._parcels.settle_all()
        self._tally[STOP] = turn.stop
        self._sent[:RIDERS] = self._tally
        self.timed = self._now
        self.steps[turn.number] = summary(self._now)

    def tie(self, turn: Turn, index: int) -> None:
        """Start to sum the gradient of a parameter over the ranks that have it."""
        first, end = self.exchange_of.own(self.piece(index))
        self._tying[index] = self._ties.groups[index].iallreduce(self._grads[first:end])

    def tied(self, turn: Turn, index: int) -> Handle:
        """Look after that sum."""
        return self._tying[index]

    def wait_tied(self, turn: Turn, index: int) -> None:
        """Wait for that sum on this lane."""
        self.meter.exposed(index, self._tying[index].wait, self.options.pause_s)

    def _stage(self, move: Move) -> BoundStage:
        assert move.stage is not None, "an action has a stage"
        if self.together is not None:
            self.together.present = move.work.count > 0
        return move.stage

    def _batch(self, move: Move) -> list[Any]:
        arrays = [*move.work.inputs, *move.work.targets]
        return [backend.to_device(a, self.state.device) for a in arrays]

    def _opened(self, move: Move) -> Any:
        """Wait for the message that an action needs, if it has not been waited for yet."""
        if move.inbox is None:
            return None
        return self._parcels.open(move.inbox.rank, move.inbox.place)

    def _emptied(self, move: Move) -> None:
        assert move.inbox is not None, "a message has come"
        self._parcels.empty(move.inbox.rank, move.inbox.place)

    def _outbox(self, move: Move, packing: Any) -> Any:
        if move.outbox is None:
            return None
        return self._parcels.outbox(move.outbox.rank, move.outbox.place, packing.nbytes)

    def _send(self, move: Move, nbytes: int) -> None:
        if move.outbox is not None:
            self._parcels.send(move.outbox.rank, move.outbox.place, nbytes)

    def _note(self, move: Move, kind: Any, began: int) -> None:
        assert move.action is not None, "an action is timed"
        action, ended = move.action._replace(kind=kind), perf_counter_ns()
        self._now.append(Timed(action, began * 1e-9, ended * 1e-9))
        self._parcels.awaiting(*move.awaits)
        if self.recorder is not None and self.recorder.enabled:
            name = f"{kind}{action.micro}"
            self.recorder.span(f"stage {action.stage}", name, began, ended)
