"""The training loop: epochs of steps, evaluation, checkpoints, reports.

Every decision is made from numbers that all ranks share (sums that travelled with the
gradient, or facts agreed at the start), so that all ranks do the same thing at the same step.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hpctrain.comm.world import World
from hpctrain.errors import NumericError
from hpctrain.io import Batch, Loader
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.served_parallel import ServedParallel
from hpctrain.parallel.work import LAG, StepResult, Work
from hpctrain.train.position import Position
from hpctrain.train.profile import Profile
from hpctrain.train.report import Report
from hpctrain.train.saver import Saver
from hpctrain.train.signals import StopFlag

__all__ = ["Outcome", "Settings", "Trainer"]

MAX_SKIPPED = 100  # steps in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long to train and how often to look up.

    Attributes
    ----------
    epochs : int
    max_steps : int
        End after this many steps in all; 0 for no limit.
    log_every : int
        Steps between two reports.
    checkpoint_every : int
        Epochs between two checkpoints; the last epoch always has one.
    """

    epochs: int
    max_steps: int = 0
    log_every: int = 50
    checkpoint_every: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes
    ----------
    finished : bool
        False if it was asked to stop and can be continued.
    values : dict of str to float
        Of the last epoch: losses and accuracies, exact over all ranks.
    """

    finished: bool
    values: dict[str, float]


class Trainer:
    """Trains until the end, or until asked to stop.

    Parameters
    ----------
    step : DataParallel
    evaluator : callable
        From a rank's part of a batch to its sums of losses and right answers, and outputs.
    train, test : Loader
        ``test`` may be None.
    world : World
    saver : Saver
    report : Report
    profile : Profile
    settings : Settings
    """

    def __init__(  # noqa: PLR0913 (the parts of a run)
        self,
        step: DataParallel,
        evaluator: Callable[[Work], tuple[float, float, np.ndarray]],
        train: Loader,
        test: Loader | None,
        world: World,
        saver: Saver,
        report: Report,
        profile: Profile,
        settings: Settings,
    ) -> None:
        self.step = step
        self.evaluator = evaluator
        self.train = train
        self.test = test
        self.world = world
        self.saver = saver
        self.report = report
        self.profile = profile
        self.settings = settings
        self.at = Position()
        self._skipped = 0  # steps in a row

    def fit(self, stop: StopFlag) -> Outcome:
        """Train; collective over all ranks.

        Parameters
        ----------
        stop : StopFlag
            This rank's wish to stop; one rank's wish stops all at the same step.

        Raises
        ------
        NumericError
            If the loss is no longer finite, or `MAX_SKIPPED` steps in a row were skipped.
        """
        self.at = self.saver.resume() or self.at
        self.step.begin_at(self.at.step)
        self.report.begin(self.at)
        values: dict[str, float] = {}
        while not self._over():
            if self._epoch(stop) and not self._over():
                self._check_finite()
                self.saver.save(self.at)
                self._finish()
                return Outcome(False, values)
            values = self._end_epoch()
        self._finish()
        return Outcome(True, values or self.saver.last_values)

    def _finish(self) -> None:
        self.profile.finish()
        self.saver.finish()

    def _over(self) -> bool:
        limit = self.settings.max_steps
        return self.at.epoch >= self.settings.epochs or 0 < limit <= self.at.step

    def _epoch(self, stop: StopFlag) -> bool:
        """Make the steps that are left of an epoch; return whether to stop."""
        self._divide()
        pending: deque[tuple[int, int]] = deque()
        stopping = False
        batches = self.train.epoch(self.at.epoch, self.at.batch)
        for group in _grouped(batches, self.step.options.accumulate):
            self.profile.before(self.step.step_number)
            self.step.stop = stop.requested()
            number = self.step.step(*(self._work(batch, self.train) for batch in group))
            pending.append((number, len(group)))
            self.report.waited(sum(batch.wait_seconds for batch in group))
            if len(pending) > LAG:
                stopping = self._take(*pending.popleft())
            if stopping or self.step.step_number == self.settings.max_steps:
                break
        while pending:
            stopping = self._take(*pending.popleft()) or stopping
        self.step.engine.wait_all()
        if isinstance(self.step, ServedParallel):
            self.at.include(*self.step.catch_up())
        self.profile.before(self.step.step_number)
        return stopping

    def _divide(self) -> bool:
        """Divide the records among the ranks that are left; return whether some are lost."""
        lost = self.world.recount()
        if lost:
            for loader in (self.train, self.test):
                if loader is not None:
                    loader.share(self.world.rank, self.world.size)
        return lost

    def _work(self, batch: Batch, loader: Loader) -> Work:
        return Work(
            batch.inputs,
            batch.targets,
            batch.count,
            batch.global_count,
            batch.row,
            batch.variable,
        )

    def _take(self, number: int, batches: int) -> bool:
        """Take the result of a step, the same on every rank; return whether to stop."""
        result: StepResult = self.step.result(number)
        self.report.losses(self.at, self.step)
        finite = math.isfinite(result.loss_sum)
        if not finite and not self.step.options.skip:
            raise NumericError(
                f"training: the loss is {result.loss_sum} at step {number + 1}, needed a "
                "finite number; lower optim.lr, set optim.clip_norm, or look for bad records"
            )
        # Without rounds what is skipped is this worker's, and the sums are those of all.
        alone = isinstance(self.step, ServedParallel) and not self.step.trade.terms.sync
        if finite and (alone or not result.skipped):
            self.at.add(result.loss_sum, result.correct, result.count, batches)
        else:
            self.at.add(0.0, 0.0, 0, batches)
        self._skipped = self._skipped + 1 if result.skipped else 0
        if result.skipped and not alone:
            self.report.skipped(self.at, result)
        if self._skipped == MAX_SKIPPED:
            raise NumericError(
                f"training: {MAX_SKIPPED} steps up to step {number + 1} were skipped, because "
                "gradients were not finite, needed one that counts; lower optim.lr, set "
                "optim.clip_norm, or look for bad records"
            )
        if self.at.step % self.settings.log_every == 0:
            self.report.step(self.at, result, self.step)
        return result.stop

    def _end_epoch(self) -> dict[str, float]:
        state = self.step.state
        own = state.average_layers(self.step.group)
        self._check_finite()
        self._divide()
        self.report.losses(self.at, self.step)
        values = self._values(self.at, "train")
        if self.test is not None:
            values.update(self._tested(self.test))
        self.report.epoch(self.at, values, self.step)
        if self.at.batch < self.train.plan.steps:
            # The limit of steps fell into this epoch: a longer run goes on within it.
            state.restore_layers(own)
        else:
            self.at.next_epoch()
        every = self.settings.checkpoint_every
        if self.at.epoch % every == 0 or self._over():
            self.saver.save(self.at, values)
        return values

    def _tested(self, records: Loader) -> dict[str, float]:
        """Return what a test tells, if it is finite: else no checkpoint could hold it."""
        found = self._values(self.evaluate(records), "test")
        if not all(map(math.isfinite, found.values())):
            raise NumericError(
                f"training: the test loss is {found['test_loss']} after step {self.at.step}, "
                "needed a finite number; look for bad records in the test data"
            )
        return found

    def _check_finite(self) -> None:
        """Raise rather than evaluate and save parameters that the last step has spoilt.

        Its loss was that of the parameters before it. All ranks raise, also for a stage of one.
        """
        finite = np.array([np.isfinite(self.step.state.flat.weights).all()], np.uint8)
        self.world.control.allreduce(finite, "min")
        if not finite[0]:
            raise NumericError(
                f"training: parameters are not finite after step {self.at.step}, needed finite "
                "numbers; lower optim.lr, or set optim.clip_norm"
            )

    def _values(self, sums: Position, which: str) -> dict[str, float]:
        if not sums.count:  # all steps were skipped
            return {}
        values = {f"{which}_loss": sums.loss_sum / sums.count}
        if self.step.objective.correct is not None:
            values[f"{which}_accuracy"] = sums.correct / sums.count
        return values

    def evaluate(self, loader: Loader) -> Position:
        """Evaluate on all records of ``loader``; collective.

        Returns
        -------
        Position
            Sums over all ranks: every record counts once, whatever the number of ranks.
        """
        lost = True
        while lost:  # again, if a rank has died and so its part is missing
            sums = np.zeros(3, np.float64)
            for batch in loader.epoch(0):
                if batch.count:
                    loss_sum, correct, _ = self.evaluator(self._work(batch, loader))
                    sums += [loss_sum, correct, batch.count]
                batch.release()
            self.step.group.allreduce(sums)
            lost = self._divide()
        return Position(loss_sum=sums[0], correct=sums[1], count=int(sums[2]))


def _grouped(batches: Iterable[Batch], most: int) -> Iterator[list[Batch]]:
    """Yield the batches of each step; the last group of an epoch may be smaller."""
    group: list[Batch] = []
    for batch in batches:
        group.append(batch)
        if len(group) == most:
            yield group
            group = []
    if group:
        yield group
