"""Loops as rows: the forward one here, the gradient in `loop_gradient`.

Inputs of the row: data, states, assigned state, closures of the step, closures of the
condition. Outputs: stacked outputs, states at the end, stacked values that the gradient needs,
and the number of steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpctrain.autograd import Primitive, Spec, apply_row, assign, pause
from hpctrain.autograd.mode import current, interpreted_by
from hpctrain.backend import Device
from hpctrain.control.inner import Inner
from hpctrain.control.loop_gradient import LoopGradient
from hpctrain.control.step import CapturedStep, Step, capture_step
from hpctrain.control.work import WorkPlan, contiguous, stacked
from hpctrain.errors import ShapeError
from hpctrain.graph.passes import optimise
from hpctrain.graph.plan import make_plan

__all__ = ["foreach", "while_loop"]

COUNT = Spec((), np.dtype(np.int64))


def foreach(
    step: Step, data: Sequence[Any], states: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Add a loop over slices to the graph; return its outputs and the states at the end."""
    captured = capture_step("foreach", step, data, states)
    loop = _Loop("foreach", captured, data[0].shape[0], data[0].device)
    return loop.apply([*data, *states])


def while_loop(
    condition: Callable[[Sequence[Any]], Any],
    step: Step,
    states: Sequence[Any],
    limit: int,
) -> tuple[list[Any], list[Any]]:
    """Add a loop with a condition to the graph; return padded outputs, and the states."""
    device = states[0].device
    tracer = Inner(current().interpreter, device)
    symbols = [tracer.input(t.spec) for t in states]
    with interpreted_by(tracer), pause(current().training):
        flag = condition(symbols)
        if flag.size != 1 or tracer.assigned:
            raise ShapeError(
                f"while_loop: got the condition {flag.spec}, needed one element, and no state "
                "assigned by it"
            )
        graph = tracer.finish([flag])
    inputs = tuple(tracer.index(t) for t in symbols) + tuple(tracer.values)
    captured = capture_step("while_loop", step, (), states)
    loop = _Loop("while_loop", captured, limit, device)
    loop.test = WorkPlan(make_plan(optimise(replace(graph, inputs=inputs))), device)
    return loop.apply(states, tracer.closures)


class _Loop:
    """A captured loop: how often it runs at most, and its row."""

    def __init__(self, name: str, step: CapturedStep, limit: int, device: Device) -> None:
        self.name, self.step, self.limit, self.device = name, step, limit, device
        self.front = WorkPlan(step.plan, device)
        self.test: WorkPlan | None = None
        stacks = [stacked(spec, limit) for spec in step.outs]
        extras = [stacked(spec, limit) for spec in step.extras]
        self.specs = [*stacks, *step.states, *extras, COUNT]

    def apply(
        self, inputs: Sequence[Any], tested: Sequence[Any] = ()
    ) -> tuple[list[Any], list[Any]]:
        """Apply the row, and assign the state that the steps assign."""
        step = self.step
        row = Primitive(
            self.name, "call", self._infer, self._kernel, self._vjp,
            scratch=self._scratch, pure=False, onto=True,
        )  # fmt: skip
        given = [*inputs, *step.targets, *step.closures, *tested]
        outputs = apply_row(row, given, {})
        outs = len(step.outs)
        own = len(step.states) - len(step.targets)
        final = outputs[outs : outs + len(step.states)]
        for target, value in zip(step.targets, final[own:], strict=True):
            assign(target, value)
        return list(outputs[:outs]), list(final[:own])

    def _infer(self, _: Sequence[Spec]) -> list[Spec]:
        return self.specs

    def _scratch(self, _: Sequence[Spec]) -> list[Spec]:
        plans = [self.front] if self.test is None else [self.front, self.test]
        flag = [] if self.test is None else [self.test.outputs[0]]
        return [WorkPlan.arena(plans), *self.step.states, *flag]

    def _kernel(self, xp: Any, ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> None:
        """Run the steps; new states go to one of two places in turn, at last to the outputs."""
        data, states, closures, tested = self._parts(contiguous(xp, ins))
        made, carried = len(self.step.outs), len(states)
        final, spare = outs[made : made + carried], scratch[1 : 1 + carried]
        places = [spare, final] if self.limit % 2 == 0 else [final, spare]
        extras = outs[made + carried : -1]
        count = 0
        self.front.use(scratch[0])
        while count < self.limit and self._goes_on(scratch, states, tested):
            new = places[count % 2]
            self.front(
                [*(d[count, ...] for d in data), *states, *closures],
                [*(o[count, ...] for o in outs[:made]), *new, *(e[count, ...] for e in extras)],
            )
            states, count = new, count + 1
        self.front.forget()
        if states is not final:
            for place, state in zip(final, states, strict=True):
                place[...] = state
        for stack in outs[:made]:
            stack[count:] = 0
        outs[-1][...] = count

    def _parts(self, ins: Sequence[Any]) -> list[list[Any]]:
        """Divide the inputs into data, states, closures, closures of the condition."""
        step = self.step
        ends = np.cumsum([step.data, len(step.states), len(step.closures)]).tolist()
        return [list(ins[a:b]) for a, b in zip([0, *ends], [*ends, len(ins)], strict=True)]

    def _goes_on(self, scratch: Any, states: Sequence[Any], tested: Sequence[Any]) -> bool:
        if self.test is None:
            return True
        own = len(states) - len(self.step.targets)
        self.test.use(scratch[0])
        self.test([*states[:own], *tested], [scratch[-1]])
        return bool(scratch[-1])

    def _vjp(self, inputs: Any, outputs: Any, cotangents: Any, known: Any) -> list[Any]:
        none: list[Any] = [None] * len(inputs)
        if self.step.gradient is None:
            return none
        rule = LoopGradient(self.name, self.step, self.limit, self.device)
        for place, found in rule.apply(inputs, outputs, cotangents, known):
            none[place] = found
        return none
