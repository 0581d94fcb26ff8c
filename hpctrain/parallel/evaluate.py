"""Evaluation: the plan of the forward pass alone, in inference mode."""

from collections.abc import Sequence

import numpy as np

from hpctrain import backend
from hpctrain.autograd import Spec
from hpctrain.graph.execute import Executor
from hpctrain.graph.pool import Pool
from hpctrain.graph.recent import Recent
from hpctrain.parallel.program import Objective, evaluation_plan
from hpctrain.parallel.state import ModelState
from hpctrain.parallel.work import Work

__all__ = ["Evaluator"]


class Evaluator:
    """Runs a model on batches without changing it.

    Parameters
    ----------
    objective : Objective
    state : ModelState
    fuse : bool
        Make one kernel of neighbouring element-wise operations.
    """

    def __init__(self, objective: Objective, state: ModelState, fuse: bool = False) -> None:
        self.objective = objective
        self.fuse = fuse
        self.state = state
        self._bound: Recent[Executor] = Recent()
        self._pool = Pool()

    def __call__(self, work: Work) -> tuple[float, float, np.ndarray]:
        """Evaluate this rank's part of a batch; runs in the caller's thread.

        Parameters
        ----------
        work : Work

        Returns
        -------
        loss_sum : float
        correct : float
        outputs : ndarray
            Of the model, on the host.

        Notes
        -----
        No training step may be under way: wait for the parameters first.
        """
        key = work.specs()
        run = self._bound.get(key, lambda: self._bind(*key))
        graph, device = run.graph, self.state.device
        outputs = [
            backend.empty(graph.specs[v].shape, graph.specs[v].dtype, device)
            for v in graph.outputs
        ]
        run([backend.to_device(a, device) for a in (*work.inputs, *work.targets)], outputs)
        run.forget()
        losses, correct, result = map(backend.to_host, outputs)
        return float(losses.sum(dtype=np.float64)), float(correct), result

    def _bind(self, inputs: Sequence[Spec], targets: Sequence[Spec]) -> Executor:
        state = self.state
        plan = evaluation_plan(
            self.objective, (inputs, targets), state.leaves, state.device, self.fuse
        )
        leaves = [t.value for t in state.leaves]
        return Executor(plan, leaves, device=state.device, pool=self._pool)
