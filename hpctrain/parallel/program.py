"""Model, loss and gradient captured as one graph, and planned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hpctrain import ops
from hpctrain.autograd import Spec, Tensor
from hpctrain.backend import CPU, Device
from hpctrain.graph.budget import Memory, plan_within
from hpctrain.graph.capture import capture, capture_gradient
from hpctrain.graph.ir import Graph
from hpctrain.graph.passes import EXACT, FUSED, optimise
from hpctrain.graph.plan import Plan, make_plan
from hpctrain.graph.precision import narrow
from hpctrain.graph.repeated import Repeated, plan_repeated
from hpctrain.parallel.together import Combine

__all__ = [
    "Objective", "StepDefinition", "count_correct", "evaluation_graph", "evaluation_plan",
    "improved", "repeated_evaluation", "repeated_plan", "training_graph", "training_plan",
]  # fmt: skip


def count_correct(outputs: Any, labels: Any) -> Any:
    """Return how many rows have their largest output at the label, as a scalar in a graph.

    Parameters
    ----------
    outputs : Tensor, shape (..., classes)
    labels : Tensor of integers, shape (...)

    Returns
    -------
    Tensor, shape (), dtype of ``outputs``
        Exact up to 2**24 rows in float32.
    """
    hits = ops.argmax(outputs, -1) == labels.astype("int64")
    return ops.sum(hits.astype(outputs.dtype))


@dataclass(frozen=True, slots=True)
class Objective:
    """What is made small, and what is counted beside it.

    Attributes
    ----------
    net : callable
        Takes the input tensors, returns the outputs.
    loss : callable
        Takes outputs and targets, returns one loss for each sample, shape (batch,).
    correct : callable or None
        Takes outputs and targets, returns the scalar number of right answers.
    together : Combine or None
        What layers of ``net`` ask for statistics over all ranks. Then every rank runs the plan
        of every part of a step, for who has no sample of it by `hpctrain.parallel.together`.
    narrow : bool
        Whether products take their factors in bfloat16: see `hpctrain.graph.precision`.
    """

    net: Callable[..., Any]
    loss: Callable[..., Any]
    correct: Callable[..., Any] | None = None
    together: Combine | None = None
    narrow: bool = False

    def __call__(self, inputs: Sequence[Any], targets: Sequence[Any]) -> tuple[Any, ...]:
        """Return the losses, then the number of right answers, then the outputs."""
        outputs = self.net(*inputs)
        losses = self.loss(outputs, *targets)
        if self.correct is None:
            return losses, ops.zeros_like(ops.sum(losses)), outputs
        return losses, self.correct(outputs, *targets), outputs


@dataclass(frozen=True, slots=True)
class StepDefinition:
    """What a step of training, or of evaluation, is captured and planned from.

    Attributes
    ----------
    objective : Objective
    specs : (specs of the inputs, specs of the targets)
    leaves : sequence of Tensor
        Parameters and state of the model.
    wanted : sequence of Tensor
        Those that are trained; an evaluation does not look at them.
    device : Device
    memory : Memory
        What training may keep for the backward part; the rest is recomputed.
    fuse : bool
        Make one kernel of neighbouring element-wise operations: the same numbers within
        rounding, instead of the same bits as in eager execution.
    """

    objective: Objective
    specs: tuple[Sequence[Spec], Sequence[Spec]]
    leaves: Sequence[Tensor]
    wanted: Sequence[Tensor] = ()
    device: Device = CPU
    memory: Memory = field(default_factory=Memory)
    fuse: bool = False

    def flat_specs(self) -> list[Spec]:
        """Return the specs of the inputs, then those of the targets."""
        return [*self.specs[0], *self.specs[1]]

    def apply(self, *tensors: Any) -> tuple[Any, ...]:
        """Return what the objective makes of the inputs and the targets that follow them."""
        count = len(self.specs[0])
        return self.objective(tensors[:count], tensors[count:])


def training_plan(step: StepDefinition) -> Plan:
    """Plan a training step.

    Parameters
    ----------
    step : StepDefinition

    Returns
    -------
    Plan
        Inputs: the batch, then the weight of a sample in the loss. Outputs: losses of shape
        (batch,), number of right answers, then the gradients.

    Raises
    ------
    ConfigError
        If the step needs more than the memory allowed.
    """
    return plan_within(training_graph(step), step.memory, partial(_finished, fuse=step.fuse))


def repeated_plan(step: StepDefinition) -> Repeated:
    """Plan a training step of several parts: what is made of parameters alone is made once.

    Otherwise as `training_plan`.
    """
    return plan_repeated(training_graph(step), step.memory, partial(improved, fuse=step.fuse))


def improved(graph: Graph, fuse: bool) -> Graph:
    """Return a graph after all passes; those that fuse kernels only if that is wanted."""
    return optimise(graph, FUSED if fuse else EXACT)


def _finished(graph: Graph, fuse: bool) -> Plan:
    return make_plan(improved(graph, fuse))


def evaluation_plan(step: StepDefinition) -> Plan:
    """Plan an evaluation: losses, number of right answers, and the model's outputs."""
    return _finished(evaluation_graph(step), step.fuse)


def repeated_evaluation(step: StepDefinition) -> Repeated:
    """Plan an evaluation in several pieces; otherwise as `evaluation_plan`."""
    finish = partial(improved, fuse=step.fuse)
    return plan_repeated(evaluation_graph(step), Memory("off"), finish)


def training_graph(step: StepDefinition) -> Graph:
    """Capture a training step, unoptimised; see `training_plan`."""

    def function(*tensors: Any) -> tuple[Any, ...]:
        return step.apply(*tensors)[:2]

    graph = capture_gradient(function, step.flat_specs(), step.leaves, step.wanted, step.device)
    return narrow(graph) if step.objective.narrow else graph


def evaluation_graph(step: StepDefinition) -> Graph:
    """Capture an evaluation, unoptimised; see `evaluation_plan`."""
    graph = capture(step.apply, step.flat_specs(), step.leaves, step.device, training=False)
    return narrow(graph) if step.objective.narrow else graph
