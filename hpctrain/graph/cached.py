"""A function that is captured once for each kind of call and then run as a plan.

This is what a hybridized block calls. Where gradients are recorded, forward and backward are
captured as one graph, optimised together and split: what the backward part needs of the
forward part becomes an extra output of the first and an input of the second.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.autograd import Primitive, Spec, Tensor, apply, apply_row, pause, record
from hpctrain.autograd.backward import pull_back
from hpctrain.autograd.mode import current, interpreted_by
from hpctrain.backend import Device
from hpctrain.graph.capture import Capture, as_tuple
from hpctrain.graph.execute import Executor
from hpctrain.graph.ir import Graph
from hpctrain.graph.passes import optimise
from hpctrain.graph.plan import make_plan

__all__ = ["CachedGraph"]

_KINDS_KEPT = 64  # captured kinds of call (shapes, modes) kept for each function


@dataclass(frozen=True, slots=True)
class _Entry:
    """One captured kind of call: the row to apply, and how many outputs are the function's."""

    row: Primitive
    count: int
    many: bool


class CachedGraph:
    """Calls ``function`` through plans, captured anew for each kind of call.

    Parameters
    ----------
    function : callable
        Takes tensors, returns a tensor or a sequence of tensors; Python control flow is
        frozen as it went at capture.
    leaves : sequence of Tensor
        Parameters and state that the function reads.

    Notes
    -----
    A kind of call is the shapes and dtypes of the inputs, the device, training or not, and
    which gradients are wanted. The least recently used of more than 64 kinds is dropped.
    Results are new arrays: they stay valid when the function is called again.
    """

    def __init__(self, function: Callable[..., Any], leaves: Sequence[Tensor]) -> None:
        self.function = function
        self.leaves = list(leaves)
        self._entries: OrderedDict[Any, _Entry] = OrderedDict()
        self.captures = 0

    def __call__(self, *inputs: Any) -> Any:
        """Return what the function returns, recorded on the tape if that is running."""
        mode = current()
        wanted: tuple[bool, ...] = ()
        if mode.recording:
            wanted = tuple(t.requires_grad for t in inputs)
            wanted += tuple(t.grad_req != "null" for t in self.leaves)
        device = inputs[0].device
        key = (tuple(t.spec for t in inputs), device, mode.training, wanted)
        entry = self._entries.get(key)
        if entry is None:
            self.captures += 1
            entry = self._entries[key] = self._capture(inputs, wanted, device)
            if len(self._entries) > _KINDS_KEPT:
                self._entries.popitem(last=False)
        self._entries.move_to_end(key)
        outputs = apply_row(entry.row, [*inputs, *self.leaves], {})[: entry.count]
        return outputs if entry.many else outputs[0]

    def _capture(self, inputs: Sequence[Any], wanted: Sequence[bool], device: Device) -> _Entry:
        tracer = Capture(self.leaves, device)
        training = current().training
        symbols = [tracer.input(t.spec, f"input{i}") for i, t in enumerate(inputs)]
        for symbol, needed in zip(symbols, wanted, strict=False):
            symbol.attach_grad("write" if needed else "null")
        recording = record(training) if any(wanted) else pause(training)
        with interpreted_by(tracer), recording:
            result = self.function(*symbols)
            outputs = as_tuple(result)
            if not any(wanted):
                row = _plain_row(optimise(tracer.finish(outputs)), device)
                return _Entry(row, len(outputs), isinstance(result, tuple | list))
            variables = [*symbols, *self.leaves]
            heads = [o for o in outputs if o.requires_grad]
            with pause(training):
                cotangents = [
                    tracer.input(o.spec, f"cotangent{i}") for i, o in enumerate(heads)
                ]
                found = pull_back(heads, cotangents)[1] if heads else {}
            places = [i for i, t in enumerate(variables) if wanted[i] and id(t) in found]
            gradients = [found[id(variables[i])] for i in places]
        joint = optimise(
            tracer.finish([*outputs, *gradients]), ("dead_code", "common_subexpressions")
        )
        taken = [i for i, o in enumerate(outputs) if o.requires_grad]
        row = _recorded_row(joint, len(outputs), taken, places, device)
        return _Entry(row, len(outputs), isinstance(result, tuple | list))


def _plain_row(graph: Graph, device: Device, name: str = "graph") -> Primitive:
    """Make a row of a whole graph; its inputs are the graph's inputs, then its leaves."""
    specs = [graph.specs[v] for v in graph.outputs]
    plan = make_plan(graph)
    count = len(graph.inputs)
    bound: list[Executor] = []

    def infer(_: Sequence[Spec]) -> Sequence[Spec]:
        return specs

    def kernel(xp: Any, ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> None:
        leaves = ins[count:]
        if not bound:
            bound.append(Executor(plan, leaves, device=device))
        run = bound[0]
        if any(a is not b for a, b in zip(leaves, run.leaves, strict=True)):
            run.bind(leaves)
        # Only where needed: NumPy would make a vector of a scalar.
        given = [a if a.flags.c_contiguous else xp.ascontiguousarray(a) for a in ins[:count]]
        run(given, outs)
        run.forget()

    return Primitive(name, "call", infer, kernel, pure=False)


def _recorded_row(
    joint: Graph, count: int, taken: Sequence[int], places: Sequence[int], device: Device
) -> Primitive:
    """Make a row with a gradient rule from a graph of outputs followed by gradients.

    ``taken`` are the outputs that have a cotangent, ``places`` the row's inputs that the
    gradients belong to.
    """
    front, back, saved = _split(joint, count, len(taken))
    forward = _plain_row(front, device, "graph_forward")
    reverse = _plain_row(back, device, "graph_backward")
    inner = len(front.inputs)

    def vjp(inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        if not places:  # no output depends on anything with a gradient
            return [None] * len(inputs)
        given = [
            apply("zeros_like", outputs[i]) if cotangents[i] is None else cotangents[i]
            for i in taken
        ]
        kept = [inputs[front.inputs.index(v)] if v in front.inputs else None for v in saved]
        extra = iter(outputs[count:])
        residuals = [k if k is not None else next(extra) for k in kept]
        found = apply_row(reverse, [*residuals, *given, *inputs[inner:]], {})
        gradients: list[Any] = [None] * len(inputs)
        for place, gradient in zip(places, found, strict=True):
            gradients[place] = gradient
        return gradients

    return replace(forward, vjp=vjp)


def _split(joint: Graph, count: int, cotangents: int) -> tuple[Graph, Graph, list[int]]:
    """Split into forward and backward; also return the values that pass between them."""
    inputs = joint.inputs[: len(joint.inputs) - cotangents]
    needed = {*joint.outputs[:count], *(source for _, source in joint.assigns)}
    ahead, behind = [], []
    for node in reversed(joint.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            ahead.append(node)
        else:
            behind.append(node)
    made = {*inputs, *(v for n in ahead for v in n.outputs)}
    made.update(leaf for leaf, _ in joint.assigns)  # the backward part must see it as it was
    read = [*(v for n in reversed(behind) for v in n.inputs), *joint.outputs[count:]]
    saved = list(dict.fromkeys(v for v in read if v in made))
    front = replace(
        joint,
        nodes=tuple(reversed(ahead)),
        inputs=inputs,
        outputs=(*joint.outputs[:count], *(v for v in saved if v not in inputs)),
    )
    back = replace(
        joint,
        nodes=tuple(reversed(behind)),
        inputs=(*saved, *joint.inputs[len(inputs) :]),
        outputs=joint.outputs[count:],
        assigns=(),
    )
    return optimise(front), optimise(_without_saved_leaves(back, saved)), saved


def _without_saved_leaves(graph: Graph, saved: Sequence[int]) -> Graph:
    """Give state that is handed over a leaf of its own, so that each value is defined once."""
    specs = dict(graph.specs)
    leaves = list(graph.leaves)
    for place, leaf in enumerate(leaves):
        if leaf in saved:
            leaves[place] = max(specs) + 1
            specs[leaves[place]] = specs[leaf]
    return replace(graph, specs=specs, leaves=tuple(leaves))
