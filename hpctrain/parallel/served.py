"""What one server keeps of a model, and does with it: sums, updates, answers."""

from collections import Counter
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from hpctrain.comm.compress import Codec
from hpctrain.comm.letter import Header, Letter, Op
from hpctrain.comm.post import Post
from hpctrain.comm.wire import sum_in_order
from hpctrain.optim import LossScale, Optimizer, Schedule, clip_scale, sum_of_squares
from hpctrain.parallel.news import News
from hpctrain.parallel.placement import Places
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.terms import Terms, body_bytes
from hpctrain.parallel.told import Told
from hpctrain.parallel.work import Options

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

    Notes
    -----
    Where updates do not wait for each other, each has the gradient of the mean over one
    worker's samples, and the learning rate is multiplied by that worker's share of the batch:
    in an epoch parameters move as far as with one update for all. With `Terms.compensation`
    c the gradient g becomes ``g + c g² (w - w')`` for a worker that has computed it with w'.

    References
    ----------
    Zheng et al., "Asynchronous stochastic gradient descent with delay compensation",
    ICML 2017.
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
    ) -> None:
        self.state, self.optimizer, self.schedule = state, optimizer, schedule
        self.options, self.terms, self.post = options, terms, post
        self.clip_norm = options.clip_norm
        self.scale = LossScale(options.loss_scale, dynamic=options.skip)
        self.spans = [parts[post.rank] for parts in places]
        self.workers = range(terms.servers, post.size)
        self.news = News(self.workers, terms.sync)
        self.seconds = [0.0] * len(self.spans)
        self.late: list[Counter[int]] = [Counter() for _ in self.spans]
        flat = state.flat
        dtype = np.dtype(np.float64 if options.shard else flat.dtype)
        same = dtype == flat.dtype
        self._sums = flat.grads if same else np.zeros(flat.total, dtype)
        self._updates = [0] * len(self.spans)
        # Updates before the optimizer's state was made: of all slices, or of each.
        self._before: int | None = 0
        self._made = [0] * len(self.spans)
        self._seen = [dict.fromkeys(self.workers, 0) for _ in self.spans]
        self._codecs: list[Codec | None] = [terms.codec()]
        self._coded = self._codecs[0] is not None
        kept = self._coded or (terms.compensation > 0 and not terms.sync)
        self._told = Told(flat.weights, self._listeners) if kept else None
        factors = state.factors()
        self._runs = [flat.runs(piece, factors) for piece in flat.slices]

    def start(self, step: int) -> None:
        """Go on at a step; before it every worker has made one update a step."""
        made = 0 if self.terms.sync else step * len(self.workers)
        self._updates = [made] * len(self.spans)
        self._seen = [dict.fromkeys(self.workers, made) for _ in self.spans]

    def begin_anew(self) -> None:
        """Note that the optimizer's state is new."""
        self._before, self._made = None, list(self._updates)

    def forget(self) -> None:
        """Note that all workers have these parameters."""
        if self._told is not None:
            self._told = Told(self.state.flat.weights, self._listeners)

    @property
    def _listeners(self) -> Any:
        return None if self.terms.sync else self.workers

    def exact(self, index: int) -> int:
        """Return how many elements at the head of a part are riders."""
        a, b = self.spans[index]
        return len(self.state.flat.riders) if index == 0 and a == 0 and b > 0 else 0

    def add_up(self, index: int, letters: Sequence[Letter]) -> None:
        """Sum the gradients in some letters, in their order, and give their memory back."""
        start = perf_counter()
        a, b = self.spans[index]
        out, exact = self._sums[a:b], self.exact(index)
        with np.errstate(all="ignore"):  # what is not finite is found by who looks for it
            if self._coded:
                self._decode(letters, out, exact)
            elif len(letters) == 1:
                out[...] = letters[0].view(out.dtype, b - a)
            else:
                bodies = [letter.view(out.dtype, b - a) for letter in letters]
                sum_in_order(bodies, out, 0, partial=bodies[0])
        if out.dtype != self.state.flat.dtype:
            self.state.flat.grads[a:b] = out
        for letter in letters:
            letter.close()
        self.seconds[index] += perf_counter() - start

    def _decode(self, letters: Sequence[Letter], out: Any, exact: int) -> None:
        codec = self._take()
        head = exact * out.itemsize
        out[:exact] = 0
        for place, letter in enumerate(letters):
            out[:exact] += letter.view(out.dtype, exact)
            data = letter.body[head : head + codec.nbytes(out.size - exact)]
            (codec.add if place else codec.decode)(data, out[exact:])
        self._codecs.append(codec)

    def _take(self) -> Codec:
        """Take a codec that nobody uses."""
        try:
            codec = self._codecs.pop()
        except IndexError:
            codec = self.terms.codec()
        assert codec is not None, "letters are encoded"
        return codec

    def squares(self, index: int) -> float:
        """Return the sum of the squares of a summed part."""
        a, b = self.spans[index]
        return sum_of_squares(self.state.flat.grads[a + self.exact(index) : b])

    def update(self, index: int, version: int, squares: float = 0.0) -> None:
        """Update a part by the sum of all gradients of a step."""
        factor = 1.0 / self.news.scale_of_step
        if self.clip_norm:
            factor = clip_scale(squares, self.clip_norm, factor)
        made = version - self.scale.skipped
        if self._before is None:
            self._before = made
        self._update(index, version, made - self._before, factor, 1.0)

    def apply(self, index: int, header: Header, worker: int) -> None:
        """Update a part by the gradient of one worker, which `add_up` has taken in."""
        self.late[index][self._updates[index] - self._seen[index][worker]] += 1
        if header.share <= 0:
            return
        a, b = self.spans[index]
        scale = 1.0 / (header.share * self.scale.value)
        c = self.terms.compensation
        if c and self._told is not None:
            a += self.exact(index)
            grad, weights = self.state.flat.grads[a:b], self.state.flat.weights[a:b]
            # In units of the worker's own mean gradient, grad * scale.
            grad += (c * scale) * grad * grad * (weights - self._told.of(worker)[a:b])
        made = self._updates[index] - self._made[index]
        self._update(index, header.version, made, scale, header.share)
        self._updates[index] += 1

    def _update(self, index: int, version: int, step: int, scale: float, share: float) -> None:
        start = perf_counter()
        state, flat = self.state, self.state.flat
        lr, shift = self.schedule.lr(version) * share, state.shift(index)
        first, end = self.spans[index]
        for begin, stop, (lr_mult, wd_mult) in self._runs[index]:
            a, b = max(begin, first), min(stop, end)
            if a >= b:
                continue
            self.optimizer.update(
                flat.weights[a:b],
                flat.grads[a:b],
                {name: array[a - shift : b - shift] for name, array in state.optimizer.items()},
                lr=lr * lr_mult,
                step=step,
                weight_decay=self.optimizer.weight_decay * wd_mult,
                scale=scale,
            )
        self.seconds[index] += perf_counter() - start

    def value(self, index: int, version: int, worker: int, whole: bool = False) -> Letter:
        """Return a letter with the parameters of a part, and riders at the head.

        Parameters
        ----------
        index : int
        version : int
            The step of the push that it answers.
        worker : int
            Who gets it; where workers do not differ, all do.
        whole : bool
            Send parameters, not encoded changes.
        """
        start = perf_counter()
        (a, b), exact, flat = self.spans[index], self.exact(index), self.state.flat
        coded = self._coded and not whole
        codec = self._take() if coded else None
        letter = self.post.room(body_bytes(codec, b - a, exact, flat.dtype))
        scale = 1.0
        if exact:
            letter.view(flat.dtype, exact)[:] = self.news.riders(flat.grads[:exact], worker)
        if codec is not None and self._told is not None:
            out = letter.body[exact * flat.dtype.itemsize :]
            scale = self._told.encode(codec, worker, a + exact, b, out)
            self._codecs.append(codec)
        else:
            letter.view(flat.dtype, b - a)[exact:] = flat.weights[a + exact : b]
            if self._told is not None:
                self._told.whole(worker, a, b)
        self._seen[index][worker] = self._updates[index]
        letter.seal(
            Header(
                Op.VALUE, index, version, a, b - a, flat.dtype.char,
                flags=int(coded), number=self.news.stop_at, scale=scale,
            ),
            self.post.debug,
        )  # fmt: skip
        self.seconds[index] += perf_counter() - start
        return letter
