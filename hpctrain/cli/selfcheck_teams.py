"""What ``selfcheck`` trains by teams that share layers, in stages or not."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

import numpy as np

from hpctrain import engine
from hpctrain.autograd import Spec
from hpctrain.cli.selfcheck_stages import Goal, stages_of
from hpctrain.comm.group import Group
from hpctrain.comm.mesh import Mesh, Shape
from hpctrain.comm.team import Team
from hpctrain.parallel.data_parallel import DataParallel
from hpctrain.parallel.mesh_state import MeshState, whole_of
from hpctrain.parallel.micro import most_samples
from hpctrain.parallel.pieces import of_samples
from hpctrain.parallel.pipeline import Pipeline
from hpctrain.parallel.pipeline_recipe import WIRE, wire_lane
from hpctrain.parallel.shared_model import divide, local_parameters, shared, take_part
from hpctrain.parallel.stage_state import StageState
from hpctrain.parallel.staged import Layout, StagedModel
from hpctrain.parallel.tensor_parallel import TensorParallel

__all__ = ["Teams", "shape_for"]


def shape_for(size: int, stages: bool) -> Shape:
    """Return how so many ranks lie: teams of half of them, or of two in stages.

    Examples
    --------
    >>> [tuple(shape_for(size, stages=False)) for size in (2, 3, 4, 6, 8)]
    [(1, 1, 2), (1, 1, 3), (2, 1, 2), (2, 1, 3), (2, 1, 4)]
    >>> [tuple(shape_for(size, stages=True)) for size in (2, 3, 4, 6, 8)]
    [(1, 1, 2), (1, 1, 3), (1, 2, 2), (1, 3, 2), (2, 2, 2)]
    """
    if not stages or size < 4 or size % 2:
        tensor = stages_of(size)
        return Shape(size // tensor, 1, tensor)
    pipeline = stages_of(size // 2)
    return Shape(size // 2 // pipeline, pipeline, 2)


class Teams:
    """A model that teams share on the ranks of a group; collective, a context manager."""

    def __init__(
        self, goal: Goal, layout: Layout | None, group: Group, specs: Sequence[Sequence[Spec]]
    ) -> None:
        """Divide the model for batches of these specs, one replica's."""
        self._stack = ExitStack()
        shape = shape_for(group.size, layout is not None)
        self.mesh = self._stack.enter_context(Mesh(group, *shape))
        self._team = Team(self.mesh.tensor, 1e-4)
        inputs, targets = specs
        division = divide(goal.objective, goal.parameters, (inputs, targets), self._team)
        mine = local_parameters(goal.parameters, division, self._team)
        for name, part in mine.items():
            array = goal.parameters[name].data().asnumpy()
            take_part(part, array, division.cut_of(name), self._team)
        whole, own = ([p.data() for p in ps.values()] for ps in (goal.parameters, mine))
        objective = shared(goal.objective, whole, own, division, self._team)
        lanes = {**engine.DEFAULT_LANES, WIRE: wire_lane(shape.pipeline, 1e-4)}
        made = self._stack.enter_context(engine.create(lanes=lanes)), self.mesh, goal.options
        if layout is None or shape.pipeline == 1:
            state = MeshState(
                whole_of(division, mine), mine, goal.optimizer, self.mesh, goal.slice_bytes
            )
            self.step: Any = TensorParallel(
                objective, state, goal.optimizer, goal.schedule, *made
            )
        else:
            layout = replace(layout, ranks=shape.pipeline)
            most = most_samples(inputs[0].shape[0], layout.micro_batches)
            small = of_samples(inputs, most), of_samples(targets, most)
            model = StagedModel(objective, mine, layout, small, group)
            state = StageState(
                model, mine, goal.optimizer, self.mesh, goal.slice_bytes, division
            )
            self.step = Pipeline(model, state, goal.optimizer, goal.schedule, *made)
        self.step.prepare(inputs, targets)
        self._names = [n for n, p in goal.parameters.items() if p.grad_req != "null"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self.step.free()
            self._team.free()
        self._stack.__exit__(*error)

    def weights(self) -> np.ndarray:
        """Return all trained parameters, in the order of the model; collective."""
        step: DataParallel = self.step
        found, group = step.state.gathered(self.mesh.whole), self.mesh.whole
        whole = np.empty(0)
        if group.rank == 0:
            whole = np.concatenate([found[f"parameters/{n}"].ravel() for n in self._names])
        (size,) = group.bcast_obj([whole.size], 0)
        told = whole if group.rank == 0 else np.empty(size)
        group.bcast(told, 0)
        return told
