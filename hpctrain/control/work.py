"""What the rows of control flow share: inner plans in memory that the outer plan gives them."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.backend import Device
from hpctrain.graph.execute import Executor
from hpctrain.graph.plan import Plan
from hpctrain.graph.pool import Pool

__all__ = ["WorkPlan", "contiguous", "stacked"]


def contiguous(xp: Any, arrays: Sequence[Any]) -> list[Any]:
    """Return the arrays, those copied that are not C-contiguous."""
    return [a if a.flags.c_contiguous else xp.ascontiguousarray(a) for a in arrays]


def stacked(spec: Spec, count: int) -> Spec:
    """Return the spec of ``count`` such arrays, one after the other."""
    return spec.with_shape((count, *spec.shape))


class WorkPlan:
    """A plan that runs inside a kernel, in scratch memory.

    Parameters
    ----------
    plan : Plan
        Of a graph without leaves.
    device : Device
    """

    def __init__(self, plan: Plan, device: Device) -> None:
        self._plan, self._device, self._pool = plan, device, Pool()
        self._run: Executor | None = None
        self.outputs = [plan.graph.specs[v] for v in plan.graph.outputs]

    @staticmethod
    def arena(plans: Iterable["WorkPlan"]) -> Spec:
        """Return the scratch array that any one of the plans can work in."""
        nbytes = max(plan._plan.arena_bytes for plan in plans)
        return Spec((nbytes,), np.dtype(np.uint8))

    def use(self, arena: Any) -> None:
        """Work in ``arena`` from now on."""
        self._pool.lend(arena, self._device)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Run the plan; inputs are C-contiguous."""
        if self._run is None:
            self._run = Executor(self._plan, [], device=self._device, pool=self._pool)
        self._run(inputs, outputs)

    def forget(self) -> None:
        """Drop the arrays of the last run."""
        if self._run is not None:
            self._run.forget()
