"""Tensor parallelism: the ranks of a team share each layer, and teams are replicas.

A step is that of `hpctrain.parallel.data_parallel`, on a part of the model: the messages
of a team are operations of the plan. Gradients are exchanged among the ranks that have the same
part, in as many groups as a team has ranks. What concerns all, the norm of the gradient and
whether a step counts, each team puts together.
"""

from dataclasses import replace
from typing import Any

from hpctrain.comm.group import Group
from hpctrain.comm.mesh import Mesh
from hpctrain.engine import Engine
from hpctrain.optim import Optimizer, Schedule, sum_of_squares
from hpctrain.parallel.actions import Turn
from hpctrain.parallel.bound import BoundSteps
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.exchange import exchange_by
from hpctrain.parallel.mesh_state import MeshState
from hpctrain.parallel.pipeline_recipe import end_items
from hpctrain.parallel.program import Objective
from hpctrain.parallel.recipe import Rules
from hpctrain.parallel.telling import Telling
from hpctrain.parallel.ways import Way
from hpctrain.parallel.work import Options

__all__ = ["TensorParallel"]


class TensorParallel(DataParallel):
    """Pushes the steps of one rank of a team to an engine.

    Parameters
    ----------
    objective : SharedObjective
    state : MeshState
        Of this rank's parts of the parameters.
    optimizer : Optimizer
    schedule : Schedule
    engine : Engine
        With a lane ``wire`` for what teams tell each other; see
        `hpctrain.parallel.pipeline_recipe.wire_lane`.
    mesh : Mesh
        Replicas and teams. Collective over both of its groups.
    options : Options
    way : Way, optional
        Of the gradients among the ranks with the same part.
    """

    def __init__(  # noqa: PLR0913 (the parts that meet here)
        self,
        objective: Objective,
        state: MeshState,
        optimizer: Optimizer,
        schedule: Schedule,
        engine: Engine,
        mesh: Mesh,
        options: Options | None = None,
        way: Way | None = None,
    ) -> None:
        self.mesh = mesh
        self._groups: list[Group] = []
        super().__init__(objective, state, optimizer, schedule, engine, mesh.data, options, way)

    def _build(self, found: Any) -> None:
        """Make what depends on the slices."""
        state, options, mesh = self.state, self.options, self.mesh
        if found:
            state.flat.keep_whole(found)
        self._exchange = exchange_by(self.way, state, options, found)
        if not self._groups:
            self._groups.append(mesh.tensor.dup())
            if self.rules.measured:
                shared = options.sharded and mesh.data.size > 1
                self._norms = (mesh.whole if shared else mesh.tensor).dup()
                self._groups.append(self._norms)
        parts = self.optimizer, self.schedule, options, self._exchange, self.way.sums
        actions = _TeamActions(state, *parts, self._norms)
        actions.meet(self._groups[0], leads=mesh.place.tensor == 0)
        self._actions = actions
        self._bound = BoundSteps(self.objective, state, options, self.way.early(options))

    def reorder(self, order: Any) -> None:
        """Exchange slices in another order from the next step on; equal among replicas."""
        super().reorder(order)
        self._after = end_items(self.rules, ())

    @property
    def rules(self) -> Rules:
        """How steps are made."""
        found = super().rules
        return replace(found, shared_norm=found.measured)

    def free(self) -> None:
        """Free the groups of the team; collective, with nothing under way."""
        for group in self._groups:
            group.free()


class _TeamActions(Telling):
    """Actions of a rank that has parts of some parameters, and the whole of others."""

    def measure(self, turn: Turn, _: int) -> None:
        """Find the sum of the squares of what this rank counts of the gradient.

        A parameter that all ranks of a team have whole is counted by the first one.
        """
        self._squares[:] = 0
        flat, counted = self.state.flat, self.state.counted
        for piece in flat.slices:
            first, end = self.exchange_of.own(piece)
            for place in piece.parameters:
                a, b = flat.offsets[place], flat.offsets[place] + flat.sizes[place]
                part = self._grads[max(a, first) : max(first, min(b, end))]
                if counted[place]:
                    self._squares[self._place] += sum_of_squares(part)
