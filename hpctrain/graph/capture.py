"""Run a function on names instead of arrays, and write down what it does.

The function is ordinary model code; the interpreter below stands behind the one door
through which operations are applied. The gradient walk runs under the same interpreter, so
the gradient graph comes from the gradient rules of eager execution.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hpctrain.autograd import Primitive, Spec, Tensor, apply, pause, record
from hpctrain.autograd.backward import pull_back
from hpctrain.autograd.mode import interpreted_by
from hpctrain.autograd.node import Symbol
from hpctrain.backend import CPU, Device
from hpctrain.errors import ShapeError
from hpctrain.graph.ir import Graph, Node
from hpctrain.graph.marks import GROUP, NAME, current_marks, marked

__all__ = ["Capture", "capture", "capture_gradient"]

_GRAPHS = itertools.count()


class Capture:
    """An interpreter that appends nodes to a graph.

    Parameters
    ----------
    leaves : sequence of Tensor
        Parameters and state that the function may read: they become leaves of the graph.
        Every other tensor from outside becomes a constant.
    device : Device
        Where the graph will run.
    """

    def __init__(self, leaves: Sequence[Tensor], device: Device = CPU) -> None:
        self.graph = next(_GRAPHS)
        self.device = device
        self.nodes: list[Node] = []
        self.specs: list[Spec] = []
        self.inputs: list[int] = []
        self.names: dict[int, str] = {}
        self.constants: dict[int, Any] = {}
        self.leaves = [self._value(t.spec) for t in leaves]
        self._held = list(leaves)  # keeps the ids below from being used again
        self._known = {id(t): v for t, v in zip(leaves, self.leaves, strict=True)}
        self._assigned: dict[int, tuple[int, int]] = {}
        self._groups: dict[int, Any] = {}  # value -> where the node that makes it is to run

    def _value(self, spec: Spec) -> int:
        self.specs.append(spec)
        return len(self.specs) - 1

    def _tensor(self, value: int) -> Any:
        return Tensor.from_value(Symbol(value, self.graph), self.specs[value], self.device)

    def input(self, spec: Spec, name: str = "") -> Any:
        """Add an input and return the tensor that stands for it."""
        value = self._value(spec)
        self.inputs.append(value)
        self.names[value] = name
        return self._tensor(value)

    def index(self, tensor: Any) -> int:
        """Return the number of the value that ``tensor`` stands for."""
        if isinstance(tensor.value, Symbol):
            if tensor.value.graph != self.graph:
                raise ShapeError(
                    "capture: got a tensor that was captured for another graph; do not keep "
                    "tensors from one call of a hybridized block for the next"
                )
            return tensor.value.index
        if id(tensor) not in self._known:
            self._held.append(tensor)
            self._known[id(tensor)] = value = self._value(tensor.spec)
            self.constants[value] = tensor.value
        return self._known[id(tensor)]

    def apply(
        self,
        row: Primitive,
        inputs: Sequence[Any],
        attrs: dict[str, Any],
        specs: Sequence[Spec],
    ) -> Sequence[Any]:
        """Append a node and return the names of its outputs."""
        outputs = tuple(self._value(spec) for spec in specs)
        read = tuple(self.index(t) for t in inputs)
        named = tuple(sorted(attrs.items()))
        node = Node(row, read, outputs, named, current_marks())
        self.nodes.append(node)
        if node.mark(GROUP) is not None:
            kept = {name: value for name, value in node.marks if name in (GROUP, NAME)}
            self._groups.update(dict.fromkeys(outputs, kept))
        return [Symbol(value, self.graph) for value in outputs]

    def assign(self, target: Any, source: Any) -> None:
        """Let the leaf ``target`` take ``source``; later reads of it see the new value."""
        leaf = self._assigned.get(id(target), (self._known.get(id(target), -1), 0))[0]
        if leaf not in self.leaves:
            raise ShapeError(
                f"assign: got a tensor of {target.spec} that is no parameter of the block; "
                "register it as a Parameter with grad_req='null'"
            )
        value = self.index(source)
        self._assigned[id(target)] = (leaf, value)
        self._known[id(target)] = value

    def kept(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return ``inputs`` with state as it is now: a later assignment must not change it."""
        return [t if t.requires_grad else self._tensor(self.index(t)) for t in inputs]

    def beside(self, values: Sequence[Any]) -> AbstractContextManager[Any]:
        """Return a scope whose nodes run where the one that gave ``values`` does."""
        first = values[0]
        marks = self._groups.get(first.index) if isinstance(first, Symbol) else None
        return nullcontext() if marks is None else marked(**marks)

    def finish(self, outputs: Sequence[Any]) -> Graph:
        """Return the graph that computes ``outputs``."""
        return Graph(
            nodes=tuple(self.nodes),
            specs=dict(enumerate(self.specs)),
            inputs=tuple(self.inputs),
            leaves=tuple(self.leaves),
            constants=dict(self.constants),
            outputs=tuple(self.index(t) for t in outputs),
            assigns=tuple(self._assigned.values()),
            names=dict(self.names),
        )


def as_tuple(result: Any) -> tuple[Any, ...]:
    """Return ``result`` as a tuple, whether a function gave one tensor or several."""
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def capture(
    function: Callable[..., Any],
    specs: Sequence[Spec],
    leaves: Sequence[Tensor] = (),
    device: Device = CPU,
    training: bool = False,
) -> Graph:
    """Capture ``function`` applied to inputs of ``specs``.

    Parameters
    ----------
    function : callable
        Takes tensors, returns a tensor or a sequence of tensors.
    specs : sequence of Spec
        Of its arguments.
    leaves : sequence of Tensor
        Parameters and state that it reads.
    device : Device
    training : bool
        Whether layers behave as in training.

    Returns
    -------
    Graph
        Unoptimised; its outputs are those of the function.
    """
    tracer = Capture(leaves, device)
    with interpreted_by(tracer), pause(train_mode=training):
        outputs = as_tuple(function(*(tracer.input(s) for s in specs)))
        return tracer.finish(outputs)


def capture_gradient(
    function: Callable[..., Any],
    specs: Sequence[Spec],
    leaves: Sequence[Tensor],
    wanted: Sequence[Tensor],
    device: Device = CPU,
) -> Graph:
    """Capture a function together with the gradients of its first output.

    Parameters
    ----------
    function : callable
        Takes tensors of ``specs``, returns the head to differentiate, then anything else.
    specs : sequence of Spec
    leaves : sequence of Tensor
    wanted : sequence of Tensor
        The leaves to differentiate for.
    device : Device

    Returns
    -------
    Graph
        One more input than ``specs``: the cotangent of the head, a scalar that each of its
        elements is given (the weight of the loss). Outputs: those of the function, then one
        gradient for each of ``wanted``, zeros where the head does not depend on it.
    """
    tracer = Capture(leaves, device)
    with interpreted_by(tracer), record(train_mode=True):
        inputs = [tracer.input(s) for s in specs]
        outputs = as_tuple(function(*inputs))
        head = outputs[0]
        with pause(train_mode=True), marked(part="backward"):
            weight = tracer.input(Spec((), head.dtype), "weight")
            cotangent = apply("broadcast_to", weight, shape=head.shape)
            found = pull_back([head], [cotangent])[1]
            gradients = [
                found[id(t)] if id(t) in found else apply("zeros_like", t) for t in wanted
            ]
        return tracer.finish([*outputs, *gradients])
