"""Evaluation: the plan of the forward pass alone, in inference mode."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpctrain import backend
from hpctrain.autograd import Spec
from hpctrain.graph.derived import Shelves
from hpctrain.graph.execute import Executor
from hpctrain.graph.pool import Pool
from hpctrain.graph.recent import Recent
from hpctrain.graph.repeated import Once, Repeated
from hpctrain.parallel.pieces import of_samples, pieces
from hpctrain.parallel.program import (
    Objective,
    StepDefinition,
    evaluation_plan,
    repeated_evaluation,
)
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import Work

__all__ = ["Evaluator"]

Specs = tuple[Sequence[Spec], Sequence[Spec]]


class _Bound(NamedTuple):
    """A plan for one shape, and what it reads that is made once for a batch."""

    run: Executor
    once: Once


class Evaluator:
    """Runs a model on batches without changing it.

    A batch is evaluated in as many pieces, one after the other, as it takes to use a quarter
    of the memory of all its values; see `hpctrain.parallel.pieces`. What comes of parameters
    alone is made once for all of them.

    Parameters
    ----------
    objective : Objective
    state : ModelState
    fuse : bool
        Make one kernel of neighbouring element-wise operations.
    budget : int
        Bytes that the arena of a plan may have, 0 for no limit.
    batch_axis : int
        The axis of inputs, targets and outputs that counts samples.
    agree : callable, optional
        From the number of pieces that this rank needs to that of all who evaluate together.
    """

    def __init__(
        self,
        objective: Objective,
        state: ModelState,
        fuse: bool = False,
        budget: int = 0,
        batch_axis: int = 0,
        agree: Callable[[int], int] | None = None,
    ) -> None:
        self._agree = agree or (lambda count: count)
        self.objective = objective
        self.fuse = fuse
        self.state = state
        self.budget = budget
        self.batch_axis = batch_axis
        self._sizes: Recent[int] = Recent()  # of a piece, by the shapes of a batch
        self._bound: Recent[_Bound] = Recent()
        self._pool, self._shelves = Pool(), Shelves(state.device)
        self._derived = frozenset[Hashable]()  # for the batch under way

    def __call__(self, work: Work) -> tuple[float, float, np.ndarray]:
        """Evaluate this rank's part of a batch; runs in the caller's thread.

        Parameters
        ----------
        work : Work
            Of at least one sample.

        Returns
        -------
        loss_sum : float
        correct : float
        outputs : ndarray
            Of the model, on the host.

        Raises
        ------
        ConfigError
            If a single sample takes more than the budget.

        Notes
        -----
        No training step may be under way: wait for the parameters first.
        """
        specs, axis = work.specs(), self.batch_axis
        batch = specs[0][0].shape[axis]
        size = self._sizes.get(specs, lambda: self._size(specs, batch))
        self._derived = frozenset()
        if size == batch:
            return self._run(work.inputs, work.targets, whole=True)
        loss_sum, correct, whole = 0.0, 0.0, None
        for start in range(0, batch, size):
            index = (slice(None),) * axis + (slice(start, start + size),)
            inputs, targets = ([a[index] for a in of] for of in (work.inputs, work.targets))
            losses, right, part = self._run(inputs, targets)
            if whole is None:
                (spec,) = of_samples([Spec.of(part)], batch, axis)
                whole = np.empty(spec.shape, spec.dtype)
            whole[index] = part
            loss_sum, correct = loss_sum + losses, correct + right
        assert whole is not None
        return loss_sum, correct, whole

    @property
    def working_bytes(self) -> int:
        """Bytes of the arena that all plans share, and of what is kept between pieces."""
        return self._pool.nbytes + self._shelves.nbytes

    @property
    def plans_made(self) -> int:
        """How many plans were bound; a shape that comes again needs none."""
        return self._bound.made

    def _run(
        self, inputs: Sequence[Any], targets: Sequence[Any], whole: bool = False
    ) -> tuple[float, float, np.ndarray]:
        """Evaluate one piece, or a whole batch; the arrays may be slices."""
        key = tuple(map(Spec.of, inputs)), tuple(map(Spec.of, targets))
        run, once = self._bound.get(key, lambda: self._bind(key, whole))
        if not once.keys <= self._derived:
            once.run()
            self._derived |= once.keys
        graph, device = run.graph, self.state.device
        arrays = [backend.to_device(a, device) for a in (*inputs, *targets)]
        outputs = [
            backend.empty(graph.specs[v].shape, graph.specs[v].dtype, device)
            for v in graph.outputs
        ]
        run([device.module.ascontiguousarray(a) for a in arrays], outputs)
        run.forget()
        losses, correct, result = map(backend.to_host, outputs)
        return float(losses.sum(dtype=np.float64)), float(correct), result

    def _size(self, specs: Specs, batch: int) -> int:
        """Return how many samples are evaluated at a time."""

        def plan_of(samples: int) -> Repeated:
            inputs, targets = (of_samples(s, samples, self.batch_axis) for s in specs)
            return self._plan((inputs, targets), samples == batch)

        count = self._agree(pieces(plan_of, batch, budget_bytes=self.budget))
        return -(-batch // count)

    def _plan(self, specs: Specs, whole: bool) -> Repeated:
        leaves, device = self.state.leaves, self.state.device
        step = StepDefinition(self.objective, specs, leaves, device=device, fuse=self.fuse)
        if not whole:
            found = repeated_evaluation(step)
            if not self.budget or found.arena_bytes <= self.budget:
                return found
        return Repeated.alone(evaluation_plan(step))

    def _bind(self, specs: Specs, whole: bool) -> "_Bound":
        planned, device = self._plan(specs, whole), self.state.device
        leaves = [t.value for t in self.state.leaves]
        once = Once(planned.once, planned.keys, leaves, self._shelves, device)
        leaves += once.arrays
        return _Bound(Executor(planned.each, leaves, device=device, pool=self._pool), once)
