"""One step of a loop as a graph, with its gradient."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpctrain.autograd import Spec, pause
from hpctrain.autograd.backward import pull_back
from hpctrain.autograd.mode import current, interpreted_by
from hpctrain.control.inner import Inner, flows
from hpctrain.errors import ShapeError
from hpctrain.graph.ir import Graph
from hpctrain.graph.passes import optimise
from hpctrain.graph.plan import Plan, make_plan
from hpctrain.graph.split import split

__all__ = ["CapturedStep", "Gradient", "Step", "capture_step", "check_states", "output_specs"]

Step = Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]]
Source = tuple[str, int]  # where a saved value is: "data", "state", "closure", "out", "extra"


@dataclass(frozen=True, slots=True)
class Gradient:
    """The backward part of a step.

    Inputs of the plan: the saved values; the gradient so far of the ``states`` that flow,
    then of the ``closures``; the cotangents of the new states ``heads``, then of the outputs
    ``outs``. Outputs: gradients of the slices ``data``, of the states, of the closures.

    Attributes
    ----------
    plan : Plan
    sources : tuple of (kind, place)
        Where each saved value is found.
    history : dict of int to (kind, place)
        For a state that is saved, the array that holds its value after each step.
    data, states, closures, heads, outs : tuple of int
    twins : dict of int to int
        An output that is a new state: its cotangent is part of that state's.
    """

    plan: Plan
    sources: tuple[Source, ...]
    history: dict[int, Source]
    data: tuple[int, ...]
    states: tuple[int, ...]
    closures: tuple[int, ...]
    heads: tuple[int, ...]
    outs: tuple[int, ...]
    twins: dict[int, int]


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A step as a plan.

    Inputs of the plan: slices, states, closures. Outputs: the outputs, the new states, then
    what only the gradient needs.

    Attributes
    ----------
    plan : Plan
    data : int
        Number of slices.
    outs : tuple of Spec
    states : tuple of Spec
        The loop's, then those that the step assigns.
    extras : tuple of Spec
    closures : list of Tensor
    targets : list of Tensor
        What is assigned.
    gradient : Gradient or None
    """

    plan: Plan
    data: int
    outs: tuple[Spec, ...]
    states: tuple[Spec, ...]
    extras: tuple[Spec, ...]
    closures: list[Any]
    targets: list[Any]
    gradient: Gradient | None


@dataclass(slots=True)
class _Traced:
    tracer: Inner
    slices: list[Any]
    states: list[Any]
    outs: list[Any]
    new: list[Any]


def check_states(where: str, old: Sequence[Any], new: Sequence[Any]) -> None:
    """Raise `ShapeError` unless the new states are like the old ones."""
    if [t.spec for t in old] != [t.spec for t in new]:
        raise ShapeError(
            f"{where}: got new states {', '.join(str(t.spec) for t in new) or 'none'}, needed "
            f"{', '.join(str(t.spec) for t in old) or 'none'}, as before the step"
        )


def output_specs(step: Step, states: Sequence[Any]) -> list[Spec]:
    """Return the specs of the outputs of a step without data, which is not run."""
    with pause(current().training):
        return [t.spec for t in _trace("while_loop", step, (), states, ()).outs]


def _trace(
    where: str, step: Step, data: Sequence[Any], states: Sequence[Any], wanted: Sequence[bool]
) -> _Traced:
    device = (*data, *states)[0].device
    tracer = Inner(current().interpreter, device)
    slices = [tracer.input(t.spec.with_shape(t.shape[1:])) for t in data]
    carried = [tracer.input(t.spec) for t in states]
    for symbol, flag in zip((*slices, *carried), wanted, strict=bool(wanted)):
        symbol.attach_grad("write" if flag else "null")
    with interpreted_by(tracer):
        outs, new = step(slices, carried)
        check_states(where, states, new)
        outs, new = [tracer.inner(t) for t in outs], [tracer.inner(t) for t in new]
    return _Traced(tracer, slices, carried, outs, new)


def capture_step(
    where: str, step: Step, data: Sequence[Any], states: Sequence[Any]
) -> CapturedStep:
    """Capture a step, with its gradient if that is recorded and there is any.

    Parameters
    ----------
    where : str
        For messages.
    step : callable
        Takes slices and states, returns outputs and new states.
    data : sequence of Tensor, shape (T, ...)
    states : sequence of Tensor

    Notes
    -----
    Whether gradients flow through a state may depend on the step before: then the step is
    captured again, until the answer is the same before and after.
    """
    recording = current().recording
    wanted = [recording and flows(t) for t in (*data, *states)]
    while True:
        traced = _trace(where, step, data, states, wanted)
        pairs = zip(wanted[len(data) :], traced.new, strict=True)
        grown = [*wanted[: len(data)], *(flag or (recording and flows(t)) for flag, t in pairs)]
        if grown == wanted:
            break
        wanted = grown
    if recording and any(flows(t) for t in (*traced.outs, *traced.new)):
        return _with_gradient(traced)
    order, kept = _inputs(traced)
    graph = replace(_finished(traced, ()), inputs=order)
    return _captured(traced, optimise(graph), kept, (), None)


def _inputs(traced: _Traced) -> tuple[tuple[int, ...], list[int]]:
    """Return the inputs of the graph in order, and the places of closures not assigned."""
    tracer = traced.tracer
    places = {id(t): i for i, t in enumerate(tracer.closures)}
    hidden = [places[ident] for ident in tracer.assigned]
    kept = [i for i in range(len(tracer.closures)) if i not in hidden]
    first = [tracer.index(t) for t in (*traced.slices, *traced.states)]
    return (*first, *(tracer.values[i] for i in (*hidden, *kept))), kept


def _finished(traced: _Traced, gradients: Sequence[Any]) -> Graph:
    tracer = traced.tracer
    new = [tracer.named(value) for _, value in tracer.assigned.values()]
    return tracer.finish([*traced.outs, *traced.new, *new, *gradients])


def _captured(
    traced: _Traced, front: Graph, kept: list[int], extras: Sequence[int], gradient: Any
) -> CapturedStep:
    tracer = traced.tracer
    targets = [target for target, _ in tracer.assigned.values()]
    return CapturedStep(
        make_plan(front), len(traced.slices), tuple(t.spec for t in traced.outs),
        tuple(t.spec for t in (*traced.new, *targets)), tuple(front.specs[v] for v in extras),
        [tracer.closures[i] for i in kept], targets, gradient,
    )  # fmt: skip


def _twins(traced: _Traced) -> dict[int, int]:
    """Return which outputs are new states, the same tensors on the tape."""
    found: dict[int, int] = {}
    for i, out in enumerate(traced.outs):
        for j, new in enumerate(traced.new):
            if flows(out) and out.value == new.value and out.creator is new.creator:
                found.setdefault(i, j)
    return found


def _with_gradient(traced: _Traced) -> CapturedStep:
    tracer, twins = traced.tracer, _twins(traced)
    order, kept = _inputs(traced)
    stand_ins = [tracer.stand_in(tracer.closures[i]) for i in kept]
    states = [j for j, t in enumerate(traced.states) if flows(t)]
    heads = [j for j in states if flows(traced.new[j])]
    outs = [i for i, t in enumerate(traced.outs) if flows(t) and i not in twins]
    inside = [traced.states[j] for j in states]
    free = [c for c, t in enumerate(stand_ins) if flows(t)]
    with interpreted_by(tracer), pause(current().training):
        seeds = [tracer.input(t.spec) for t in (*inside, *(stand_ins[c] for c in free))]
        given = [traced.new[j] for j in heads] + [traced.outs[i] for i in outs]
        cotangents = [tracer.input(t.spec) for t in given]
        begun = [*inside, *(stand_ins[c] for c in free)]
        found = pull_back([*begun, *given], [*seeds, *cotangents])[1]
    pairs = list(zip(free, seeds[len(inside) :], strict=True))
    touched = [c for c, seed in pairs if found[id(stand_ins[c])].value != seed.value]
    data = [i for i, t in enumerate(traced.slices) if id(t) in found]
    gradients = [found[id(traced.slices[i])] for i in data]
    gradients += [found[id(t)] for t in (*inside, *(stand_ins[c] for c in touched))]
    seeds = seeds[: len(inside)] + [seed for c, seed in pairs if c in touched]
    later = tuple(tracer.index(t) for t in (*seeds, *cotangents))
    joint = replace(_finished(traced, gradients), inputs=(*order, *later))
    parts = _Parts(traced, kept, optimise(joint, ("dead_code", "common_subexpressions")))
    return parts.split(
        len(later), twins, tuple(map(tuple, (data, states, touched, heads, outs)))
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """A step with its gradient, about to be split."""

    traced: _Traced
    kept: list[int]
    joint: Graph

    def split(self, later: int, twins: dict[int, int], wanted: Any) -> CapturedStep:
        """Split into forward and backward; ``later`` inputs are cotangents."""
        traced, joint = self.traced, self.joint
        outs = len(traced.outs)
        carried = len(traced.states) + len(traced.tracer.assigned)
        front, back, saved = split(joint, outs + carried, later)
        inside = [v for v in saved if v not in front.inputs]
        extras = [v for v in inside if v not in joint.outputs[:outs]]
        history = {}
        for v in saved:
            place = front.inputs.index(v) - len(traced.slices) if v in front.inputs else -1
            if 0 <= place < carried:
                after = joint.outputs[outs + place]
                if after not in (*joint.outputs[:outs], *extras):
                    extras.append(after)
                history[place] = self._made(after, extras)
        sources = tuple(
            self._read(front.inputs.index(v), carried)
            if v in front.inputs
            else self._made(v, extras)
            for v in saved
        )
        data, states, closures, heads, made = wanted
        gradient = Gradient(
            make_plan(back), sources, history, data, states, closures, heads, made, twins
        )
        front = optimise(replace(front, outputs=(*front.outputs, *extras)))
        return _captured(traced, front, self.kept, extras, gradient)

    def _made(self, value: int, extras: list[int]) -> Source:
        made = self.joint.outputs[: len(self.traced.outs)]
        return ("out", made.index(value)) if value in made else ("extra", extras.index(value))

    def _read(self, place: int, carried: int) -> Source:
        first = len(self.traced.slices)
        if place < first:
            return "data", place
        if place < first + carried:
            return "state", place - first
        return "closure", place - first - carried
