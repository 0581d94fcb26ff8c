"""What ``selfcheck`` trains in pipeline stages."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np

from hpctrain import engine
from hpctrain.autograd import Spec
from hpctrain.comm.group import Group
from hpctrain.comm.mesh import Mesh
from hpctrain.optim import Optimizer, Schedule
from hpctrain.parallel.micro import most_samples
from hpctrain.parallel.pieces import of_samples
from hpctrain.parallel.pipeline import Pipeline
from hpctrain.parallel.pipeline_recipe import WIRE, wire_lane
from hpctrain.parallel.program import Objective
from hpctrain.parallel.stage_state import StageState
from hpctrain.parallel.staged import Layout, StagedModel
from hpctrain.parallel.work import Options

__all__ = ["Staged", "stages_of"]


def stages_of(size: int) -> int:
    """Return how many of so many ranks make a pipeline: half of them where that is several.

    Examples
    --------
    >>> [stages_of(size) for size in (1, 2, 3, 4, 6, 8)]
    [1, 2, 3, 2, 3, 4]
    """
    return size // 2 if size > 2 and size % 2 == 0 else size


class Goal(NamedTuple):
    """What is trained, and how."""

    objective: Objective
    parameters: Mapping[str, Any]
    optimizer: Optimizer
    schedule: Schedule
    options: Options
    slice_bytes: int
    batch_axis: int


class Staged:
    """A model in stages on the ranks of a group; collective, a context manager."""

    def __init__(
        self, goal: Goal, layout: Layout, group: Group, specs: list[list[Spec]]
    ) -> None:
        """Cut the model for batches of these specs, one replica's."""
        self.goal, axis = goal, goal.batch_axis
        self._stack = ExitStack()
        self.mesh = self._stack.enter_context(Mesh(group, pipeline=stages_of(group.size)))
        layout = replace(layout, ranks=self.mesh.shape.pipeline)
        most = most_samples(specs[0][0].shape[axis], layout.micro_batches)
        inputs, targets = (of_samples(s, most, axis) for s in specs)
        model = StagedModel(
            goal.objective, goal.parameters, layout, (inputs, targets), self.mesh.pipeline
        )
        lanes = {**engine.DEFAULT_LANES, WIRE: wire_lane(layout.ranks, 1e-4)}
        self._lanes = self._stack.enter_context(engine.create(lanes=lanes))
        state = StageState(model, goal.parameters, goal.optimizer, self.mesh, goal.slice_bytes)
        self.step = Pipeline(
            model, state, goal.optimizer, goal.schedule, self._lanes, self.mesh,
            goal.options, batch_axis=axis,
        )  # fmt: skip
        self.step.prepare(*specs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self.step.free()
        self._stack.__exit__(*error)

    def weights(self) -> np.ndarray:
        """Return all trained parameters, in the order of the model; collective."""
        found = []
        for name, parameter in self.goal.parameters.items():
            if parameter.grad_req == "null":
                continue
            array = np.zeros(parameter.shape)
            if self.step.model.homes(name)[0] == self.mesh.place.pipeline:
                array[...] = parameter.data().asnumpy()
            found.append(array.reshape(-1))
        whole = np.concatenate(found)
        self.mesh.pipeline.allreduce(whole)
        return whole
