"""A function that is captured once for each kind of call and then run as a plan.

This is what a hybridized block calls. Where gradients are recorded, forward and backward are
captured as one graph, optimised together and split: what the backward part needs of the
forward part becomes an extra output of the first and an input of the second.
"""

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
from hpctrain.graph.marks import marked
from hpctrain.graph.passes import EXACT, optimise
from hpctrain.graph.plan import make_plan
from hpctrain.graph.pool import Pool
from hpctrain.graph.recent import Recent
from hpctrain.graph.recompute import recompute_regions
from hpctrain.graph.split import split

__all__ = ["CachedGraph", "Statistics"]

_TOGETHER = EXACT[: EXACT.index("own_outputs")]  # before the parts are divided


@dataclass(frozen=True, slots=True)
class _Entry:
    """One captured kind of call: the row to apply, and how many outputs are the function's."""

    row: Primitive
    count: int
    many: bool


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a `CachedGraph` has done.

    Attributes
    ----------
    calls, captures : int
    kept : int
        Kinds of call that are ready to run.
    arena_bytes : int
        Working memory of all of them together.
    """

    calls: int
    captures: int
    kept: int
    arena_bytes: int


class CachedGraph:
    """Calls ``function`` through plans, captured anew for each kind of call.

    Parameters
    ----------
    function : callable
        Takes tensors, returns a tensor or a sequence of tensors; Python control flow is
        frozen as it went at capture.
    leaves : sequence of Tensor
        Parameters and state that the function reads.
    pool : Pool, optional
        Working memory; may be shared with others of which only one is called at a time.

    Notes
    -----
    A kind of call is the shapes and dtypes of the inputs, the device, training or not, and
    which gradients are wanted. The least recently used of more than 64 kinds is dropped; the
    working memory of all of them is one arena, that of the largest.
    Results are new arrays: they stay valid when the function is called again.
    """

    def __init__(
        self, function: Callable[..., Any], leaves: Sequence[Tensor], pool: Pool | None = None
    ) -> None:
        self.function = function
        self.leaves = list(leaves)
        self.pool = pool or Pool()
        self._entries: Recent[_Entry] = Recent()
        self._calls = 0

    def statistics(self) -> Statistics:
        """Return the counts so far."""
        return Statistics(self._calls, self.captures, len(self._entries), self.pool.nbytes)

    @property
    def captures(self) -> int:
        """How often a kind of call was captured, again after it was dropped too."""
        return self._entries.made

    def __call__(self, *inputs: Any) -> Any:
        """Return what the function returns, recorded on the tape if that is running."""
        mode = current()
        wanted: tuple[bool, ...] = ()
        if mode.recording:
            wanted = tuple(t.requires_grad for t in inputs)
            wanted += tuple(t.grad_req != "null" for t in self.leaves)
        device = inputs[0].device
        key = (tuple(t.spec for t in inputs), device, mode.training, wanted)
        self._calls += 1
        entry = self._entries.get(key, lambda: self._capture(inputs, wanted, device))
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
                row = _plain_row(optimise(tracer.finish(outputs)), device, self.pool)
                return _Entry(row, len(outputs), isinstance(result, tuple | list))
            variables = [*symbols, *self.leaves]
            heads = [o for o in outputs if o.requires_grad]
            with pause(training), marked(part="backward"):
                cotangents = [
                    tracer.input(o.spec, f"cotangent{i}") for i, o in enumerate(heads)
                ]
                found = pull_back(heads, cotangents)[1] if heads else {}
            places = [i for i, t in enumerate(variables) if wanted[i] and id(t) in found]
            gradients = [found[id(variables[i])] for i in places]
        joint = optimise(tracer.finish([*outputs, *gradients]), _TOGETHER)
        joint = recompute_regions(joint)
        taken = [i for i, o in enumerate(outputs) if o.requires_grad]
        row = _recorded_row(joint, len(outputs), taken, places, device, self.pool)
        return _Entry(row, len(outputs), isinstance(result, tuple | list))


def _plain_row(graph: Graph, device: Device, pool: Pool, name: str = "graph") -> Primitive:
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
            bound.append(Executor(plan, leaves, device=device, pool=pool))
        run = bound[0]
        if any(a is not b for a, b in zip(leaves, run.leaves, strict=True)):
            run.bind(leaves)
        # Only where needed: NumPy would make a vector of a scalar.
        given = [a if a.flags.c_contiguous else xp.ascontiguousarray(a) for a in ins[:count]]
        run(given, outs)
        run.forget()

    return Primitive(name, "call", infer, kernel, pure=False)


def _recorded_row(
    joint: Graph,
    count: int,
    taken: Sequence[int],
    places: Sequence[int],
    device: Device,
    pool: Pool,
) -> Primitive:
    """Make a row with a gradient rule from a graph of outputs followed by gradients.

    ``taken`` are the outputs that have a cotangent, ``places`` the row's inputs that the
    gradients belong to.
    """
    front, back, saved = split(joint, count, len(taken))
    extras = [v for v in saved if v not in front.inputs]
    front = optimise(replace(front, outputs=(*front.outputs, *extras)))
    forward = _plain_row(front, device, pool, "graph_forward")
    reverse = _plain_row(back, device, pool, "graph_backward")
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
