"""The least time that a training step can take on this machine, by shapes and measurements.

Products and convolutions count at the best rate that any kernel here reaches for their shapes,
alone and again and again: NumPy's BLAS and the ways of oneDNN, packed in the call and packed
before; for images oneDNN's kernel for channels that lie last. Every other kernel of the plan,
which is fused, has to move its inputs and outputs once, and the update three arrays of
parameters in and two out, at the rate of a copy of as many bytes.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from hpctrain import backend, models
from hpctrain.autograd import Spec
from hpctrain.cli.fastest import fastest_conv, fastest_product
from hpctrain.graph.ir import Node
from hpctrain.graph.native import fuses
from hpctrain.graph.plan import Plan
from hpctrain.ops import dnnl
from hpctrain.parallel.program import Objective, StepDefinition, training_plan

__all__ = ["Floor", "floor", "products"]

Product = tuple[float, int, int, int, bool, bool]  # how often; rows, depth, columns; transposed


@dataclass(frozen=True, slots=True)
class Floor:
    """The least time of a step, ms: what multiplies, and what only moves."""

    products_ms: float
    bytes_ms: float

    @property
    def ms(self) -> float:
        """Both, one after the other: there is one thread."""
        return self.products_ms + self.bytes_ms


def floor(name: str) -> Floor:
    """Measure the floor of a workload anew, on one thread.

    Parameters
    ----------
    name : str
        See `hpctrain.models.workload`.
    """
    with threadpool_limits(1):
        dnnl.limit(1)
        plan, parameters = _plan(name)
        rates, multiplied, moved = _Rates(), 0.0, 0.0
        for node in plan.graph.nodes:
            ins = [plan.graph.specs[v] for v in node.inputs]
            outs = [plan.graph.specs[v] for v in node.outputs]
            found = rates.multiplied(node, ins, outs)
            if found is not None:
                multiplied += found
            elif node.outputs[0] not in plan.views:
                each = {*node.inputs, *node.outputs}
                moved += rates.moved(sum(plan.graph.specs[v].nbytes for v in each))
        moved += rates.moved(5 * parameters)
    return Floor(multiplied * 1e3, moved * 1e3)


def _plan(name: str) -> tuple[Plan, int]:
    """Return the plan of a step, and the bytes of what is trained."""
    work = models.workload(name)
    work.net.initialize(ctx=backend.CPU)
    leaves = [p.data() for p in work.net.collect_params().values()]
    trained = [t for t in leaves if t.grad_req != "null"]
    inputs, labels = ((Spec.of(a),) for a in work.make(np.random.default_rng(0)))
    goal = Objective(work.net, work.loss)
    fuse = fuses("auto")
    step = StepDefinition(goal, (inputs, labels), leaves, trained, fuse=fuse)
    return training_plan(step), sum(t.spec.nbytes for t in trained)


class _Rates:
    """What this machine reaches now; each measurement is made once."""

    def __init__(self) -> None:
        self.product = functools.cache(fastest_product)
        self.conv = functools.cache(fastest_conv)
        self.copy = functools.cache(_rate)

    def multiplied(self, node: Node, ins: list[Spec], outs: list[Spec]) -> float | None:
        """Return the least seconds of a node that multiplies, or None if it does not."""
        if node.row.name.startswith("conv"):
            return self.conv(node.row.name, tuple(ins), node.attrs)
        shapes = list(products(node, ins, outs))
        return sum(n * self.product(*shape) for n, *shape in shapes) if shapes else None

    def moved(self, nbytes: int) -> float:
        """Return the seconds in which a copy reads and writes ``nbytes`` together."""
        size = 1 << max(12, (max(1, nbytes) - 1).bit_length())
        return nbytes / self.copy(size)


def products(node: Node, ins: list[Spec], outs: list[Spec]) -> Iterator[Product]:
    """Yield the products of matrices of a node: how often, sizes, and which are transposed."""
    attrs: dict[str, Any] = dict(node.attrs)
    rule = _RULES.get(node.row.name)
    if rule is not None:
        yield from rule(ins, outs, attrs)


def _matmul(ins: list[Spec], outs: list[Spec], attrs: dict[str, Any]) -> Iterator[Product]:
    flips = attrs.get("transpose_a", False), attrs.get("transpose_b", False)
    depth = ins[0].shape[-2 if flips[0] else -1]
    stacked = math.prod(outs[0].shape[:-2]) if ins[1].ndim > 2 else 1
    rows = outs[0].size // outs[0].shape[-1] // stacked
    yield (stacked, rows, depth, outs[0].shape[-1], *flips)


def _dense(ins: list[Spec], outs: list[Spec], attrs: dict[str, Any]) -> Iterator[Product]:
    columns, depth = ins[1].shape
    yield 1, outs[0].size // columns, depth, columns, False, True


def _attention(count: int, first: int) -> Callable[..., Iterator[Product]]:
    """Make the rule of ``count`` products for each head, half of each where it is causal."""

    def rule(ins: list[Spec], outs: list[Spec], attrs: dict[str, Any]) -> Iterator[Product]:
        batch, steps, width = ins[first].shape
        heads = attrs["heads"]
        share = 0.5 if attrs["causal"] else 1
        often = count * share * batch * heads / 2
        yield often, steps, width // 3 // heads, steps, False, True
        yield often, steps, steps, width // 3 // heads, False, False

    return rule


def _recurrent(ins: list[Spec], outs: list[Spec], attrs: dict[str, Any]) -> Iterator[Product]:
    steps, batch, _ = ins[0].shape
    (gates, inputs), (_, state) = ins[3].shape, ins[4].shape
    yield 1, steps * batch, inputs, gates, False, True
    yield steps, batch, state, gates, False, True


def _recurrent_grad(
    ins: list[Spec], outs: list[Spec], attrs: dict[str, Any]
) -> Iterator[Product]:
    steps, batch, _ = ins[0].shape
    gates, state = ins[4].shape
    yield steps, batch, gates, state, False, False


_RULES: dict[str, Callable[..., Iterator[Product]]] = {
    "matmul": _matmul,
    "dense": _dense,
    "self_attention": _attention(2, 0),
    "self_attention_grad": _attention(5, 1),
    "lstm": _recurrent,
    "lstm_grad": _recurrent_grad,
}


def _rate(nbytes: int) -> float:
    """Return the bytes a second that a copy of half of ``nbytes`` reads and writes."""
    source, target = np.ones(nbytes // 2, np.uint8), np.zeros(nbytes // 2, np.uint8)
    repeat = max(1, (1 << 22) // nbytes)
    least = math.inf
    for _ in range(7):
        begun = perf_counter()
        for _ in range(repeat):
            np.copyto(target, source)
        least = min(least, perf_counter() - begun)
    return nbytes * repeat / least
