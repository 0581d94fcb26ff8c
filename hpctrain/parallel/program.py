"""Model, loss and gradient captured as one graph, and planned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    "Objective", "count_correct", "evaluation_graph", "evaluation_plan", "improved",
    "repeated_evaluation", "repeated_plan", "training_graph", "training_plan",
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


def training_plan(  # noqa: PLR0913 (what a step is made of)
    objective: Objective,
    specs: tuple[Sequence[Spec], Sequence[Spec]],
    leaves: Sequence[Tensor],
    wanted: Sequence[Tensor],
    device: Device = CPU,
    memory: Memory | None = None,
    fuse: bool = False,
) -> Plan:
    """Plan a training step.

    Parameters
    ----------
    objective : Objective
    specs : (specs of the inputs, specs of the targets)
    leaves : sequence of Tensor
        Parameters and state of the model.
    wanted : sequence of Tensor
        Those that are trained.
    device : Device
    memory : Memory, optional
        What may be kept for the backward part; the rest is recomputed.
    fuse : bool
        Make one kernel of neighbouring element-wise operations: the same numbers within
        rounding, instead of the same bits as in eager execution.

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
    graph = training_graph(objective, specs, leaves, wanted, device)
    return plan_within(graph, memory or Memory(), partial(_finished, fuse=fuse))


def repeated_plan(  # noqa: PLR0913 (what a step is made of)
    objective: Objective,
    specs: tuple[Sequence[Spec], Sequence[Spec]],
    leaves: Sequence[Tensor],
    wanted: Sequence[Tensor],
    device: Device = CPU,
    memory: Memory | None = None,
    fuse: bool = False,
) -> Repeated:
    """Plan a training step of several parts: what is made of parameters alone is made once.

    Otherwise as `training_plan`.
    """
    graph = training_graph(objective, specs, leaves, wanted, device)
    return plan_repeated(graph, memory or Memory(), partial(improved, fuse=fuse))


def improved(graph: Graph, fuse: bool) -> Graph:
    """Return a graph after all passes; those that fuse kernels only if that is wanted."""
    return optimise(graph, FUSED if fuse else EXACT)


def _finished(graph: Graph, fuse: bool) -> Plan:
    return make_plan(improved(graph, fuse))


def evaluation_plan(
    objective: Objective,
    specs: tuple[Sequence[Spec], Sequence[Spec]],
    leaves: Sequence[Tensor],
    device: Device = CPU,
    fuse: bool = False,
) -> Plan:
    """Plan an evaluation: losses, number of right answers, and the model's outputs."""
    return _finished(evaluation_graph(objective, specs, leaves, device), fuse)


def repeated_evaluation(
    objective: Objective,
    specs: tuple[Sequence[Spec], Sequence[Spec]],
    leaves: Sequence[Tensor],
    device: Device = CPU,
    fuse: bool = False,
) -> Repeated:
    """Plan an evaluation in several pieces; otherwise as `evaluation_plan`."""
    graph = evaluation_graph(objective, specs, leaves, device)
    return plan_repeated(graph, Memory("off"), partial(improved, fuse=fuse))


def training_graph(
    objective: Objective,
    specs: tuple[Sequence[Spec], Sequence[Spec]],
    leaves: Sequence[Tensor],
    wanted: Sequence[Tensor],
    device: Device = CPU,
) -> Graph:
    """Capture a training step, unoptimised; see `training_plan`."""
    count = len(specs[0])

    def function(*tensors: Any) -> tuple[Any, ...]:
        return objective(tensors[:count], tensors[count:])[:2]

    graph = capture_gradient(function, [*specs[0], *specs[1]], leaves, wanted, device)
    return narrow(graph) if objective.narrow else graph


def evaluation_graph(
    objective: Objective,
    specs: tuple[Sequence[Spec], Sequence[Spec]],
    leaves: Sequence[Tensor],
    device: Device = CPU,
) -> Graph:
    """Capture an evaluation, unoptimised; see `evaluation_plan`."""
    count = len(specs[0])

    def function(*tensors: Any) -> tuple[Any, ...]:
        return objective(tensors[:count], tensors[count:])

    graph = capture(function, [*specs[0], *specs[1]], leaves, device, training=False)
    return narrow(graph) if objective.narrow else graph
