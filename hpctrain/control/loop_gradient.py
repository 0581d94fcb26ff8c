"""The gradient of a loop: the backward part of its step, run from the last step to the first.

What is known of a cotangent before the loop, from later operations, is where its sum begins;
each step goes on with it. Where nothing is known it begins with -0, which changes no bit of
what is added to it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from hpctrain.autograd import Primitive, Spec, apply_row
from hpctrain.backend import Device
from hpctrain.control.step import CapturedStep, Gradient, Source
from hpctrain.control.work import WorkPlan, contiguous, stacked

__all__ = ["LoopGradient"]


class LoopGradient:
    """The backward row of a loop.

    Its inputs are the arrays that hold saved values, the number of steps, then, where they
    are not None, cotangents of the outputs and of the final states, and the known cotangents
    of data, first states and closures. Its outputs are the cotangents of these three.

    Parameters
    ----------
    name : str
    step : CapturedStep
        With a gradient.
    limit : int
    device : Device
    """

    def __init__(self, name: str, step: CapturedStep, limit: int, device: Device) -> None:
        assert step.gradient is not None
        self.name, self.step, self.limit = name + "_gradient", step, limit
        self.rule: Gradient = step.gradient
        self.plan = WorkPlan(self.rule.plan, device)
        self.reads: list[Source] = list(dict.fromkeys(self._sources()))
        self.present: list[bool] = []
        rule = self.rule
        found = [self.plan.outputs[i] for i in range(len(rule.data))]
        self.specs = [stacked(s, limit) for s in found] + self.plan.outputs[len(found) :]
        # What a step reads where nothing is given: zeros, one array for each kind.
        given = [step.states[j] for j in rule.states] + [step.outs[i] for i in rule.outs]
        self.zeros = list(dict.fromkeys(given))

    def _sources(self) -> Iterator[Source]:
        for kind, place in self.rule.sources:
            yield kind, place
            if kind == "state":
                yield self.rule.history[place]

    def apply(
        self, inputs: Any, outputs: Any, cotangents: Any, known: Any
    ) -> list[tuple[int, Any]]:
        """Apply the row; return the places of inputs, and their cotangents."""
        rule, step = self.rule, self.step
        first, carried, outs = step.data, len(step.states), len(step.outs)
        held = {
            "data": inputs, "state": inputs[first:], "closure": inputs[first + carried :],
            "out": outputs, "extra": outputs[outs + carried :],
        }  # fmt: skip
        places = [*rule.data, *(first + j for j in rule.states)]
        places += [first + carried + c for c in rule.closures]
        given = [cotangents[i] for i in range(outs)]
        given += [cotangents[outs + j] for j in rule.states]
        given += [known[place] for place in places]
        self.present = [g is not None for g in given]
        row = Primitive(
            self.name, "call", lambda _: self.specs, self._kernel, scratch=self._scratch,
            pure=False,
        )  # fmt: skip
        read = [held[kind][place] for kind, place in self.reads]
        found = apply_row(row, [*read, outputs[-1], *(g for g in given if g is not None)], {})
        return list(zip(places, found, strict=True))

    def _scratch(self, _: Sequence[Spec]) -> list[Spec]:
        sums = self.specs[len(self.rule.data) :]
        return [WorkPlan.arena([self.plan]), *sums, *self.zeros]

    def _kernel(self, xp: Any, ins: Sequence[Any], outs: Sequence[Any], scratch: Any) -> None:
        count = int(ins[len(self.reads)])
        run = _Run(self, xp, contiguous(xp, ins), outs, scratch)
        self.plan.use(scratch[0])
        run.begin(count)
        for t in range(count - 1, -1, -1):
            run.step(t)
        run.end(count)
        self.plan.forget()


class _Run:
    """One run of the backward row: its arrays, by what they are."""

    def __init__(self, loop: LoopGradient, xp: Any, ins: Any, outs: Any, scratch: Any) -> None:
        rule = self.rule = loop.rule
        self.plan, self.xp, self.limit = loop.plan, xp, loop.limit
        self.held = dict(zip(loop.reads, ins, strict=False))
        rest = iter(ins[len(loop.reads) + 1 :])
        given = [next(rest) if there else None for there in loop.present]
        made, states = len(loop.step.outs), len(rule.states)
        self.outs, self.final = given[:made], given[made : made + states]
        known = given[made + states :]
        self.known_data, self.known = known[: len(rule.data)], known[len(rule.data) :]
        self.data, self.sums = outs[: len(rule.data)], outs[len(rule.data) :]
        self.spare = scratch[1 : 1 + len(self.sums)]
        self.zeros = dict(zip(loop.zeros, scratch[1 + len(self.sums) :], strict=True))
        self.specs = [loop.step.states[j] for j in rule.states]
        self.out_specs = loop.step.outs

    def places(self, t: int) -> list[Any]:
        """Return where the sums are after step ``t`` of the reverse run."""
        return self.spare if t % 2 else self.sums

    def twins(self, j: int, t: int) -> list[Any]:
        """Return the cotangents of the outputs of step ``t`` that are the new state ``j``."""
        found = [self.outs[i] for i, state in self.rule.twins.items() if state == j]
        return [given[t, ...] for given in reversed(found) if given is not None]

    def begin(self, count: int) -> None:
        """Let the sums be what is known before the last step."""
        for zero in self.zeros.values():
            zero[...] = -0.0
        places, states = self.places(count), self.rule.states
        for place, j, given in zip(places, states, self.final, strict=False):
            place[...] = -0.0 if given is None else given
            for twin in self.twins(j, count - 1) if count else ():
                place += twin
        rest = slice(len(states), None)
        for place, given in zip(places[rest], self.known[rest], strict=True):
            place[...] = -0.0 if given is None else given

    def step(self, t: int) -> None:
        """Run the backward part of step ``t``."""
        rule, before, after = self.rule, self.places(t + 1), self.places(t)
        states = len(rule.states)
        saved = [self.saved(kind, place, t) for kind, place in rule.sources]
        seeds = [self.seed(k, t) for k in range(states)]
        carry = [before[rule.states.index(j)] for j in rule.heads]
        outs = [self.cotangent(i, t) for i in rule.outs]
        self.plan(
            [*saved, *seeds, *before[states:], *carry, *outs],
            [*(d[t, ...] for d in self.data), *after],
        )

    def cotangent(self, i: int, t: int) -> Any:
        """Return the cotangent of output ``i`` of step ``t``."""
        given = self.outs[i]
        return self.zeros[self.out_specs[i]] if given is None else given[t, ...]

    def saved(self, kind: str, place: int, t: int) -> Any:
        """Return a saved value of step ``t``; a state is what the step before left."""
        if kind == "state" and t > 0:
            return self.held[self.rule.history[place]][t - 1, ...]
        array = self.held[kind, place]
        return array if kind in ("state", "closure") else array[t, ...]

    def seed(self, k: int, t: int) -> Any:
        """Return what is known of the state before step ``t`` without that step."""
        zero = self.zeros[self.specs[k]]
        if t == 0:
            return zero if self.known[k] is None else self.known[k]
        found = self.twins(self.rule.states[k], t - 1)
        if len(found) > 1:
            total = found[0]
            for more in found[1:]:
                total = total + more
            return total
        return found[0] if found else zero

    def end(self, count: int) -> None:
        """Bring in what is known where no step has done so."""
        for array, known in zip(self.data, self.known_data, strict=True):
            array[count:] = 0
            if known is not None:
                self.xp.add(known, array, out=array)
        if count:
            return
        first = [*self.final, *[None] * (len(self.sums) - len(self.final))]
        for place, known, given in zip(self.sums, self.known, first, strict=True):
            if given is None:
                place[...] = 0 if known is None else known
            elif known is not None:
                self.xp.add(known, given, out=place)
