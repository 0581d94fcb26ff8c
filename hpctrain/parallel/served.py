"""What one server keeps of a model, and does with it: sums, updates, answers."""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from hpctrain.comm.letter import Header, Letter, Op
from hpctrain.comm.post import Post
from hpctrain.optim import LossScale, Optimizer, Schedule, clip_scale, sum_of_squares
from hpctrain.parallel.counts import Counts
from hpctrain.parallel.intake import Gradient, Intake
from hpctrain.parallel.lateness import Ahead, Piece, delayed
from hpctrain.parallel.near import NEAR, Near
from hpctrain.parallel.news import News
from hpctrain.parallel.placement import Places
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.tally import Tally
from hpctrain.parallel.terms import CODED, Push, Terms, body_bytes
from hpctrain.parallel.told import Told
from hpctrain.parallel.work import BAD, Options
from hpctrain.trace import Recorder

__all__ = ["Parts"]


class Parts:
    """The parts of all slices that one server keeps.

    Methods on one slice run one at a time; those on different slices may run together.

    Parameters
    ----------
    state : ModelState
        On the host. Its parameters and optimizer state are those of the server, within its
        parts.
    optimizer : Optimizer
    schedule : Schedule
        A function of the step of the worker, and so of the data that it has seen: how many
        pushes there are does not matter.
    options : Options
    terms : Terms
    places : Places
    post : Post
        Makes letters. The ranks from ``terms.servers`` on are workers.
    near : Near
        Workers that share memory with this server.
    widths : mapping of int to int, optional
        By slice of a table the length of its rows: these travel to and from other workers.
    recorder : Recorder, optional

    Notes
    -----
    Where updates do not wait for each other, each has the gradient of the mean over one
    worker's samples, and the learning rate is multiplied by that worker's share of the batch:
    in an epoch parameters move as far as with one update for all. With ``terms.ahead`` each
    worker has an optimizer's state of its own. What can be done about late gradients is in
    `hpctrain.parallel.lateness`.
    """

    def __init__(  # noqa: PLR0913 (the parts that meet here)
        self,
        state: ModelState,
        optimizer: Optimizer,
        schedule: Schedule,
        options: Options,
        terms: Terms,
        places: Places,
        post: Post,
        near: Near,
        widths: Mapping[int, int] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.near, self.recorder = near, recorder
        self.state, self.optimizer, self.schedule = state, optimizer, schedule
        self.options, self.terms, self.post = options, terms, post
        self.clip_norm = options.clip_norm
        self.scale = LossScale(options.loss_scale, dynamic=options.skip)
        self.spans = [parts[post.rank] for parts in places]
        self.workers = range(terms.servers, post.size)
        self.news = News(self.workers, terms.sync)
        self.tally = Tally(len(self.spans), recorder)
        flat = state.flat
        dtype = np.dtype(np.float64 if options.shard else flat.dtype)
        self.intake = Intake(flat, dtype, self.spans, terms, near, widths)
        self._counts = Counts(len(self.spans), self.workers)
        far = any(worker not in near for worker in self.workers)
        kept = self.intake.coded or (terms.compensation > 0 and not terms.sync and far)
        self._told = Told(flat.weights, self._listeners) if kept else None
        self.ahead: Ahead | None = None
        self.look_ahead()
        factors = state.factors()
        self._runs = [flat.runs(piece, factors) for piece in flat.slices]

    def start(self, step: int) -> None:
        """Go on at a step; before it every worker has made one update a step."""
        self.settle()
        self._counts.start(0 if self.terms.sync else step * len(self.workers))
        self.look_ahead()

    def look_ahead(self) -> None:
        """Begin to keep an optimizer's state for each worker, from the one that there is."""
        self.ahead = None
        leads = self.optimizer.ahead() if self.terms.ahead and not self.terms.sync else None
        if leads is not None:
            made = self._counts.of_each()
            self.ahead = Ahead(leads, self.state.optimizer, self.workers, made)

    def settle(self) -> None:
        """Make the optimizer's state that of all workers together, for those who look at it."""
        if self.ahead is not None:
            self.ahead.settle()

    def begin_anew(self) -> None:
        """Note that the optimizer's state is new."""
        self._counts.begin_anew()

    def forget(self) -> None:
        """Note that all workers have these parameters, and this is the optimizer's state."""
        self.look_ahead()
        if self._told is not None:
            self._told = Told(self.state.flat.weights, self._listeners)

    @property
    def _listeners(self) -> Any:
        return None if self.terms.sync else self.workers

    def add_up(self, index: int, pushes: Sequence[Push]) -> float:
        """Sum the gradients of all workers; return the sum of the squares of that."""
        start = perf_counter()
        self.intake.add_up(index, pushes)
        for push in pushes:
            push.letter.close()
        a, b = self.spans[index]
        found = sum_of_squares(self.state.flat.grads[a + self.intake.exact(index) : b])
        self.tally.worked(index, start)
        return found

    def round(self, index: int, version: int, pushes: Sequence[Push]) -> None:
        """Sum the gradients of all workers and update a part, in one pass over memory."""
        self._step(index, version, 0.0, self.intake.gradient(index, pushes))
        for push in pushes:
            push.letter.close()

    def update(self, index: int, version: int, squares: float) -> None:
        """Update a part by what `add_up` has summed, given the squares of the whole step."""
        self._step(index, version, squares, self.intake.there())

    def _step(self, index: int, version: int, squares: float, gradient: Gradient) -> None:
        factor = 1.0 / self.news.scale_of_step
        if self.clip_norm:
            factor = clip_scale(squares, self.clip_norm, factor)
        made = self._counts.of_state(version - self.scale.skipped)
        how = self.schedule.lr(version), made, factor
        self._update(index, how, gradient.of, self.workers)

    def apply(self, index: int, push: Push, newest: int, told: Sequence[int]) -> None:
        """Update a part by the gradient of one worker.

        Parameters
        ----------
        index : int
        push : Push
        newest : int
            The last step that any worker has pushed.
        told : sequence of int
            The workers that get the new parameters.
        """
        worker, share, version = push.source, push.header.share, push.header.version
        gradient = self.intake.gradient(index, [push])
        if self.intake.exact(index):
            riders = self.state.flat.grads[: self.intake.exact(index)]
            self.news.note(riders, newest)
            self.tally.skipped(worker, riders[BAD] > 0)
        self.tally.late(index, self._counts.late(index, worker))
        if share > 0:
            scale = 1.0 / (share * (push.header.scale or self.scale.value))
            if self.ahead is None:
                made = self._counts.made(index)
            else:
                made = self.ahead.step(worker, index)
            how = self.schedule.lr(version) * share, made, scale
            self._update(index, how, self._compensated(gradient, scale, worker), told, worker)
            self._counts.count(index)
        else:
            self.deliver(index, told)
        push.letter.close()

    def _compensated(self, gradient: Gradient, scale: float, worker: int) -> Piece:
        if not self.terms.compensation:
            return gradient.of
        near = worker in self.near
        assert near or self._told is not None, "what workers have is known where it is needed"
        had = self.near.weights(worker) if near else self._told.of(worker)  # type: ignore[union-attr]
        # In units of the worker's own mean gradient, grad * scale.
        factor = self.terms.compensation * scale
        return delayed(gradient.of, self.state.flat.weights, had, factor)

    def _update(
        self,
        index: int,
        how: tuple[float, int, float],
        gradient: Piece,
        told: Sequence[int],
        worker: int = 0,
    ) -> None:
        """Update a part here and on workers that share memory.

        ``how`` are rate, updates before this one, and factor on the gradient.
        """
        start = perf_counter()
        state, weights, (rate, made, scale) = self.state, self.state.flat.weights, how
        shift, (first, end) = state.shift(index), self.spans[index]
        targets, optimizer = self.near.weights_of(told), self.optimizer
        states: Mapping[str, Any] = state.optimizer
        if self.ahead is not None:
            optimizer, states = self.ahead.optimizer, self.ahead.of(worker)
        for begin, stop, (lr_mult, wd_mult) in self._runs[index]:
            a, b = max(begin, first), min(stop, end)
            if a >= b:
                continue
            decay = optimizer.weight_decay * wd_mult
            if self.intake.rows.rest(index) and optimizer.rests(decay):
                numbers = {"lr": rate * lr_mult, "step": made, "scale": scale}
                self.intake.rows.update(index, optimizer, weights, numbers)
                continue
            optimizer.update(
                weights[a:b],
                gradient(a, b),
                {n: array[a - shift : b - shift] for n, array in states.items()},
                lr=rate * lr_mult,
                step=made,
                weight_decay=decay,
                scale=scale,
                copies=[target[a:b] for target in targets],
            )
        self.tally.worked(index, start)

    def deliver(self, index: int, workers: Sequence[int]) -> None:
        """Bring a part to the workers that share memory with this server."""
        a, b = self.spans[index]
        a += self.intake.exact(index)
        for target in self.near.weights_of(workers):
            target[a:b] = self.state.flat.weights[a:b]

    def value(self, index: int, version: int, worker: int, whole: bool = False) -> Letter:
        """Return a letter with the parameters of a part, and riders at the head.

        Parameters
        ----------
        index : int
        version : int
            The step of the push that it answers.
        worker : int
            Who gets it; where workers do not differ, all that share no memory do, or all that
            do: these have the parameters already.
        whole : bool
            Send parameters, not encoded changes.
        """
        start = perf_counter()
        (a, b), exact, flat = self.spans[index], self.intake.exact(index), self.state.flat
        near = worker in self.near
        coded = self.intake.coded and not whole
        codec = self.intake.take() if coded else None
        count = exact if near else b - a
        letter = self.post.room(body_bytes(codec, count, exact, flat.dtype))
        scale = 1.0
        if exact:
            letter.view(flat.dtype, exact)[:] = self.news.riders(flat.grads[:exact], worker)
        if codec is not None and self._told is not None:
            out = letter.body[exact * flat.dtype.itemsize :]
            scale = self._told.encode(codec, worker, a + exact, b, out)
            self.intake.give(codec)
        elif not near:
            letter.view(flat.dtype, b - a)[exact:] = flat.weights[a + exact : b]
            if self._told is not None:
                self._told.whole(worker, a, b)
        self._counts.heard(index, worker)
        self.near.sync()
        letter.seal(
            Header(
                Op.VALUE, index, version, a, b - a, flat.dtype.char,
                flags=CODED * coded + NEAR * near, number=self.news.stop_at, scale=scale,
            ),
            self.post.debug,
        )  # fmt: skip
        self.tally.worked(index, start)
        return letter

    def rows(self, index: int, push: Push) -> Letter:
        """Return a letter with the rows that another asks for, and close that one."""
        start = perf_counter()
        found = self.intake.rows.wanted(index, push, self.state.flat.weights, self.post)
        self._counts.heard(index, push.source)
        self.tally.worked(index, start)
        return found
