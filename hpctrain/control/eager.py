"""Loops in eager execution: Python's own, over operations that are recorded one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpctrain import ops
from hpctrain.autograd import Tensor
from hpctrain.control.step import Step, check_states, output_specs

__all__ = ["foreach", "while_loop"]


def foreach(
    step: Step, data: Sequence[Any], states: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Run ``step`` for each slice; return the stacked outputs, and the states at the end."""
    slices = [ops.unstack(tensor) for tensor in data]
    rows, carried = [], list(states)
    for parts in zip(*slices, strict=True):
        outputs, new = step(parts, carried)
        check_states("foreach", carried, new)
        rows.append(outputs)
        carried = new
    return [ops.stack(column, 0) for column in zip(*rows, strict=True)], carried


def while_loop(
    condition: Callable[[Sequence[Any]], Any],
    step: Step,
    states: Sequence[Any],
    limit: int,
) -> tuple[list[Any], list[Any]]:
    """Run ``step`` while the condition holds; return padded outputs, and the states."""
    rows: list[Sequence[Any]] = []
    carried = list(states)
    while len(rows) < limit and condition(carried):
        outputs, new = step((), carried)
        check_states("while_loop", carried, new)
        rows.append(outputs)
        carried = new
    if not rows:
        specs = output_specs(step, carried)
        device = carried[0].device
        return [
            Tensor(np.zeros((limit, *s.shape), s.dtype), device=device) for s in specs
        ], carried
    missing = limit - len(rows)
    stacks = [ops.stack(column, 0) for column in zip(*rows, strict=True)]
    if missing:
        stacks = [ops.pad(s, [(0, missing), *[(0, 0)] * (s.ndim - 1)]) for s in stacks]
    return stacks, carried
