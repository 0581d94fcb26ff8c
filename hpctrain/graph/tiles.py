"""A fused operation without a compiler: its members' own kernels, tile by tile.

A tile is a run along the first axis that stays in cache, so that what one member writes is
still there when the next reads it. The results are those of the members, bit for bit.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.graph.ir import Node
from hpctrain.graph.work import Fused

__all__ = ["Tiles"]

_ELEMENTS = 65536  # of a tile: three arrays of float32 fit a level-2 cache of 1 MiB


class Tiles:
    """Runs a fused operation that has no sums.

    Parameters
    ----------
    work : Fused
    """

    def __init__(self, work: Fused) -> None:
        self.work = work
        self.length = work.shape[0] if work.shape else 1
        per_row = math.prod(work.shape[1:])
        self.rows = max(1, min(self.length, _ELEMENTS // per_row))
        self.specs = dict(work.inner)
        self.specs.update((a.value, Spec(a.shape, a.spec.dtype)) for a in work.inputs)
        self.specs.update((r.value, r.spec) for r in work.results)
        self._known: dict[tuple[int, int], Sequence[Spec]] = {}

    def _cut(self, spec: Spec, rows: int) -> Spec:
        """Return the part of ``spec`` that a tile of ``rows`` needs."""
        return spec.with_shape((rows, *spec.shape[1:])) if self._moves(spec) else spec

    def _moves(self, spec: Spec) -> bool:
        shape = self.work.shape
        return 0 < len(shape) == spec.ndim and spec.shape[0] == shape[0]

    def _temporaries(self, node: Node, rows: int) -> Sequence[Spec]:
        key = node.outputs[0], rows
        if key not in self._known:
            specs = [self._cut(self.specs[v], rows) for v in node.inputs]
            make = node.row.scratch
            self._known[key] = make(specs, **dict(node.attrs)) if make else []
        return self._known[key]

    def scratch(self) -> list[Spec]:
        """Return specs: a tile of each inner value, then the members' own scratch."""
        tiles = [self._cut(spec, self.rows) for spec in self.work.inner.values()]
        return tiles + [s for n in self.work.members for s in self._temporaries(n, self.rows)]

    def bind(
        self, xp: Any, ins: Sequence[Any], outs: Sequence[Any], scratch: Sequence[Any]
    ) -> Callable[[], None]:
        """Return a call that computes ``outs`` from ``ins``."""
        work = self.work
        whole = {a.value: a.seen(x) for a, x in zip(work.inputs, ins, strict=True)}
        whole.update((r.value, x) for r, x in zip(work.results, outs, strict=True))
        moving = {v: x for v, x in whole.items() if self._moves(self.specs[v])}
        calls: list[Callable[[], None]] = []
        for start in range(0, self.length, self.rows):
            rows = min(self.rows, self.length - start)
            values = {**whole, **{v: x[start : start + rows] for v, x in moving.items()}}
            room = iter(scratch)
            for (value, spec), x in zip(work.inner.items(), room, strict=False):
                values[value] = x[:rows] if self._moves(spec) else x
            for node in work.members:
                taken = [values[v] for v in node.inputs]
                given = [values[v] for v in node.outputs]
                spare = [_fit(next(room), s) for s in self._temporaries(node, rows)]
                kernel = node.row.kernel
                calls.append(partial(kernel, xp, taken, given, spare, **dict(node.attrs)))
        return partial(_in_turn, calls)


def _in_turn(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _fit(room: Any, spec: Spec) -> Any:
    """Return as much of ``room`` as ``spec`` says: the last tile may be smaller."""
    return room.reshape(-1)[: spec.size].reshape(spec.shape)
