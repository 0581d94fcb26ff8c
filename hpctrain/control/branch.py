"""A choice as a row: one of two graphs is run, and its gradient.

Inputs of the row: the predicate, then the closures of both branches, each once. Outputs: those
of the branches, the state that either assigns, and a block of bytes in which the branch taken
keeps what its gradient needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply_row, assign, pause
from hpctrain.autograd.backward import pull_back
from hpctrain.autograd.mode import current, interpreted_by
from hpctrain.backend import Device
from hpctrain.control.inner import Inner, flows
from hpctrain.control.work import WorkPlan, contiguous
from hpctrain.errors import ShapeError
from hpctrain.graph.memory import ALIGNMENT
from hpctrain.graph.passes import optimise
from hpctrain.graph.plan import make_plan
from hpctrain.graph.split import split

__all__ = ["cond"]

Function = Callable[[], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class _Branch:
    """A captured branch.

    Attributes
    ----------
    front : WorkPlan
        From ``closures`` to the outputs, the state, and ``extras``.
    back : WorkPlan or None
        From ``sources``, the gradients so far of ``touched``, and the cotangents of the outputs
        ``heads``, to the gradients of ``touched``.
    closures, touched : tuple of int
        Places among the closures of both branches.
    sources : tuple of int
        A place among those, or -1 - k for the k-th of ``extras``.
    """

    front: WorkPlan
    back: WorkPlan | None
    closures: tuple[int, ...]
    touched: tuple[int, ...]
    heads: tuple[int, ...]
    sources: tuple[int, ...]
    extras: tuple[Spec, ...]

    def views(self, block: Any) -> list[Any]:
        """Cut the block of bytes into the arrays of ``extras``."""
        found, start = [], 0
        for spec in self.extras:
            found.append(
                block[start : start + spec.nbytes].view(spec.dtype).reshape(spec.shape)
            )
            start += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return sum(-(-spec.nbytes // ALIGNMENT) * ALIGNMENT for spec in self.extras)


def cond(flag: Any, then: Function, otherwise: Function) -> list[Any]:
    """Add a choice to the graph; return its outputs.

    Parameters
    ----------
    flag : Tensor of one element
    then, otherwise : callable ``() -> sequence of Tensor``
    """
    traced = [_trace(function, flag.device) for function in (then, otherwise)]
    specs = [[t.spec for t in outs] for _, outs in traced]
    if specs[0] != specs[1]:
        raise ShapeError(
            f"cond: got {[str(s) for s in specs[0]]} and {[str(s) for s in specs[1]]} from the "
            "two functions, needed outputs that are alike"
        )
    assigned = {i: t for tracer, _ in traced for i, (t, _) in tracer.assigned.items()}
    for tracer, _ in traced:
        for target in assigned.values():
            tracer.index(target)
    closures = list({id(t): t for tracer, _ in traced for t in tracer.closures}.values())
    targets = list(assigned.values())
    made = [_capture(*pair, closures, targets) for pair in traced]
    choice = _Choice(made, [*specs[0], *(t.spec for t in targets)], len(specs[0]))
    outputs = apply_row(choice.row(), [flag, *closures], {})
    for target, value in zip(targets, outputs[len(specs[0]) : -1], strict=True):
        assign(target, value)
    return list(outputs[: len(specs[0])])


def _trace(function: Function, device: Device) -> tuple[Inner, list[Any]]:
    tracer = Inner(current().interpreter, device)
    with interpreted_by(tracer):
        return tracer, [tracer.inner(t) for t in function()]


def _capture(
    tracer: Inner, outs: list[Any], closures: list[Any], targets: list[Any]
) -> _Branch:
    stand_ins = [tracer.stand_in(t) for t in tracer.closures]
    state = [tracer.named(tracer.index(t)) for t in targets]
    heads = [i for i, t in enumerate(outs) if current().recording and flows(t)]
    free = [t for t in stand_ins if flows(t)] if heads else []
    with interpreted_by(tracer), pause(current().training):
        seeds = [tracer.input(t.spec) for t in free]
        cotangents = [tracer.input(outs[i].spec) for i in heads]
        given = [outs[i] for i in heads]
        found = pull_back([*free, *given], [*seeds, *cotangents])[1] if heads else {}
    pairs = [(t, s) for t, s in zip(free, seeds, strict=True) if found[id(t)].value != s.value]
    graph = tracer.finish([*outs, *state, *(found[id(t)] for t, _ in pairs)])
    later = tuple(tracer.index(t) for t in (*(s for _, s in pairs), *cotangents))
    graph = replace(graph, inputs=(*tracer.values, *later))
    place = {id(t): i for i, t in enumerate(closures)}
    own = tuple(place[id(t)] for t in tracer.closures)
    mine = {id(t): c for t, c in zip(stand_ins, own, strict=True)}
    device, count = tracer.device, len(outs) + len(state)
    if not heads:
        return _Branch(WorkPlan(make_plan(optimise(graph)), device), None, own, (), (), (), ())
    joint = optimise(graph, ("dead_code", "common_subexpressions"))
    front, back, saved = split(joint, count, len(later))
    extras = [v for v in saved if v not in front.inputs]
    inner = dict(zip(front.inputs, own, strict=True))
    front = optimise(replace(front, outputs=(*front.outputs, *extras)))
    return _Branch(
        WorkPlan(make_plan(front), device), WorkPlan(make_plan(back), device), own,
        tuple(mine[id(t)] for t, _ in pairs), tuple(heads),
        tuple(inner[v] if v in inner else -1 - extras.index(v) for v in saved),
        tuple(front.specs[v] for v in extras),
    )  # fmt: skip


class _Choice:
    """The rows of a choice."""

    def __init__(self, branches: list[_Branch], specs: list[Spec], outs: int) -> None:
        self.branches, self.outs = branches, outs  # then, else
        self.nbytes = max(branch.nbytes for branch in branches)
        self.specs = [*specs, Spec((self.nbytes,), np.dtype(np.uint8))]
        self.wanted = sorted({c for branch in branches for c in branch.touched})
        self.heads = sorted({i for branch in branches for i in branch.heads})
        self.fronts = [branch.front for branch in branches]
        self.backs = [branch.back for branch in branches if branch.back is not None]

    def row(self) -> Primitive:
        """Return the forward row."""
        return Primitive(
            "cond", "call", lambda _: self.specs, self._kernel, self._vjp, pure=False,
            onto=True, scratch=lambda _: [WorkPlan.arena(self.fronts)],
        )  # fmt: skip

    def _taken(self, flag: Any) -> _Branch:
        return self.branches[0 if bool(flag.reshape(())) else 1]

    def _kernel(self, xp: Any, ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> None:
        branch, closures = self._taken(ins[0]), contiguous(xp, ins[1:])
        branch.front.use(scratch[0])
        made = [*outs[:-1], *branch.views(outs[-1])]
        branch.front([closures[c] for c in branch.closures], made)
        branch.front.forget()

    def _vjp(self, inputs: Any, outputs: Any, cotangents: Any, known: Any) -> list[Any]:
        found: list[Any] = [None] * len(inputs)
        given = [cotangents[i] for i in self.heads]
        given += [known[1 + c] for c in self.wanted]
        if not self.wanted:
            return found
        back = _Back(
            self, [g is not None for g in given], [inputs[1 + c].spec for c in self.wanted]
        )
        closures = sorted({c for b in self.branches for c in b.sources if c >= 0})
        back.closures = {c: 2 + i for i, c in enumerate(closures)}
        read = [inputs[0], outputs[-1], *(inputs[1 + c] for c in closures)]
        results = apply_row(back.row(), [*read, *(g for g in given if g is not None)], {})
        for c, result in zip(self.wanted, results, strict=True):
            found[1 + c] = result
        return found


class _Back:
    """The backward row of a choice."""

    def __init__(self, choice: _Choice, present: list[bool], specs: list[Spec]) -> None:
        self.choice, self.present, self.specs = choice, present, specs
        self.closures: dict[int, int] = {}
        heads = [choice.specs[i] for i in choice.heads]
        self.zeros = list(dict.fromkeys([*heads, *specs]))

    def row(self) -> Primitive:
        """Return the row."""
        return Primitive(
            "cond_gradient", "call", lambda _: self.specs, self._kernel, pure=False,
            scratch=lambda _: [WorkPlan.arena(self.choice.backs), *self.zeros],
        )  # fmt: skip

    def _kernel(self, xp: Any, ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> None:
        choice, ins = self.choice, contiguous(xp, ins)
        branch = choice._taken(ins[0])
        rest = iter(ins[2 + len(self.closures) :])
        given = [next(rest) if there else None for there in self.present]
        cotangents = dict(zip(choice.heads, given, strict=False))
        known = dict(zip(choice.wanted, given[len(choice.heads) :], strict=True))
        sums = dict(zip(choice.wanted, outs, strict=True))
        for c in choice.wanted:
            if c not in branch.touched:
                sums[c][...] = 0 if known[c] is None else known[c]
        if branch.back is None:
            return
        zeros = dict(zip(self.zeros, scratch[1:], strict=True))
        for zero in zeros.values():
            zero[...] = -0.0
        extras = branch.views(ins[1])
        saved = [ins[self.closures[c]] if c >= 0 else extras[-1 - c] for c in branch.sources]
        seeds = [
            zeros[Spec.of(sums[c])] if known[c] is None else known[c] for c in branch.touched
        ]
        heads = [
            zeros[choice.specs[i]] if cotangents[i] is None else cotangents[i]
            for i in branch.heads
        ]
        branch.back.use(scratch[0])
        branch.back([*saved, *seeds, *heads], [sums[c] for c in branch.touched])
        branch.back.forget()
