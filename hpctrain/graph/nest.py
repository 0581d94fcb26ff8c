"""A fused operation as one compiled loop nest.

Axes along which every operand runs on without a jump are one loop. A long sum over the
outermost loop is made in parts of at most `_ROWS` rows, which are added up at the end: the
rounding errors of a sum of float32 numbers grow with the length of its parts.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Spec
from hpctrain.graph.codegen import Loops, Operand, llvm_text
from hpctrain.graph.codegen_rows import rows_text, short_rows
from hpctrain.graph.instructions import WIDTH
from hpctrain.graph.native import Compiled, cache_directory, compile_text
from hpctrain.graph.threads import Call, threads, together
from hpctrain.graph.work import Fused, Input, Result

__all__ = ["Nest", "merged"]

_ROWS = 1024
_PARTS = 64  # at most; more would cost more calls than they gain
_WORTH = 1 << 15  # elements for each thread; fewer take less time than to wake it

Strides = tuple[int, ...]


def merged(shape: Strides, strides: Sequence[Strides]) -> tuple[Strides, list[Strides]]:
    """Join neighbouring axes into one loop where every operand allows it.

    Examples
    --------
    >>> merged((2, 3, 4), [(12, 4, 1), (0, 0, 1)])
    ((6, 4), [(4, 1), (0, 1)])
    """
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        if sizes and all(
            t[-1] == s[axis] * length for t, s in zip(steps, strides, strict=True)
        ):
            sizes[-1] *= length
            for t, s in zip(steps, strides, strict=True):
                t[-1] = s[axis]
            continue
        sizes.append(length)
        for t, s in zip(steps, strides, strict=True):
            t.append(s[axis])
    if not sizes:
        return (1,), [(1,) for _ in strides]
    return tuple(sizes), [tuple(t) for t in steps]


class Nest:
    """Compiles a fused operation at the first call and runs it.

    Parameters
    ----------
    work : Fused
    """

    def __init__(self, work: Fused) -> None:
        self.work = work
        operands: list[Input | Result] = [*work.inputs, *work.results]
        self.sizes, steps = merged(work.shape, [o.over(work.shape) for o in operands])
        count = len(work.inputs)
        made = [
            Operand(o.spec.dtype.name, s[-1] if s[-1] in (0, 1) else 2)
            for o, s in zip(operands, steps, strict=True)
        ]
        self.loops = Loops(
            ndim=len(self.sizes),
            inputs=tuple(made[:count]),
            results=tuple(
                (r.element, o) for r, o in zip(work.results, made[count:], strict=True)
            ),
            summed=tuple(r.axes is not None for r in work.results),
        )
        self.rows = short_rows(self.loops, self.sizes, steps)
        self.strides = [
            [step * o.spec.dtype.itemsize for step in s]
            for o, s in zip(operands, steps, strict=True)
        ]
        flat = [s for strides in self.strides for s in strides]
        self.offsets = [a.offset * a.spec.dtype.itemsize for a in work.inputs]
        self.offsets += [0] * len(work.results)
        self.arguments = (
            (ctypes.c_int64 * len(self.sizes))(*self.sizes),
            (ctypes.c_int64 * len(flat))(*flat),
        )
        self.summed = [i for i, r in enumerate(work.results) if r.axes is not None]
        # Sums over the outermost of several loops: made in parts if that loop is long.
        long = len(self.sizes) > 1 and self.sizes[0] > _ROWS
        self.split = [i for i in self.summed if long and steps[count + i][0] == 0]
        self.parts = min(-(-self.sizes[0] // _ROWS), _PARTS) if self.split else 1

    def scratch(self) -> list[Spec]:
        """Return the specs of the partial sums."""
        results = [self.work.results[i].spec for i in self.split]
        return [s.with_shape((self.parts, *s.shape)) for s in results]

    @functools.cached_property
    def function(self) -> Callable[[Any, Any, Any], None]:
        """The function of the kernel."""
        return self.compiled.function

    @functools.cached_property
    def compiled(self) -> Compiled:
        """The kernel, compiled or loaded when it is first asked for."""
        text = llvm_text(self.loops) if self.rows is None else rows_text(self.rows)
        return compile_text(text, cache_directory())

    def bind(
        self, ins: Sequence[Any], outs: Sequence[Any], scratch: Sequence[Any]
    ) -> Callable[[], None]:
        """Return a call that computes ``outs`` from C-contiguous ``ins``."""
        if not self.summed:
            return self._shared(ins, outs)
        if self.parts == 1:
            calls = [self._call(ins, outs)]
        else:
            step = -(-self.sizes[0] // self.parts)
            calls = [
                self._part(ins, self._targets(outs, scratch, part), part * step, step)
                for part in range(self.parts)
            ]
        zeros = [*scratch, *(outs[i] for i in self.summed if i not in self.split)]
        totals = [(room, outs[i]) for room, i in zip(scratch, self.split, strict=True)]
        factors = [(outs[i], self.work.results[i].factor) for i in self.summed]
        scaled = [(array, factor) for array, factor in factors if factor != 1.0]
        return functools.partial(_with_sums, zeros, together(calls), totals, scaled)

    def _shared(self, ins: Sequence[Any], outs: Sequence[Any]) -> Callable[[], None]:
        """Return the call of a kernel without sums, cut for the threads if it is long."""
        count = min(threads(), math.prod(self.sizes) // _WORTH, self.sizes[0])
        if count < 2:
            return self._call(ins, outs)
        step = -(-self.sizes[0] // count)
        if len(self.sizes) == 1:
            step = -(-step // WIDTH) * WIDTH
        starts = range(0, self.sizes[0], step)
        return together([self._part(ins, outs, start, step) for start in starts])

    def _addresses(self, ins: Sequence[Any], targets: Sequence[Any]) -> list[int]:
        arrays = (*ins, *targets)
        begins = [array.ctypes.data for array in arrays]
        return [b + o for b, o in zip(begins, self.offsets, strict=True)]

    def _call(self, ins: Sequence[Any], targets: Sequence[Any]) -> Call:
        return functools.partial(
            self.function,
            _pointers(self._addresses(ins, targets), ins, targets),
            *self.arguments,
        )

    def _targets(self, outs: Sequence[Any], scratch: Sequence[Any], part: int) -> list[Any]:
        targets = list(outs)
        for place, room in zip(self.split, scratch, strict=True):
            targets[place] = room[part : part + 1]  # an array, also of a scalar sum
        return targets

    def _part(self, ins: Sequence[Any], targets: Sequence[Any], start: int, step: int) -> Call:
        """Make the call for rows ``start`` and the following, ``step`` of them or fewer."""
        addresses = self._addresses(ins, targets)
        for k in range(len(addresses)):
            if k - len(ins) not in self.split:
                addresses[k] += start * self.strides[k][0]
        rows = min(step, self.sizes[0] - start)
        sizes = (ctypes.c_int64 * len(self.sizes))(rows, *self.sizes[1:])
        pointers = _pointers(addresses, ins, targets)
        return functools.partial(self.function, pointers, sizes, self.arguments[1])


def _pointers(addresses: Sequence[int], *arrays: Sequence[Any]) -> Any:
    """Return addresses for C, which keep the arrays alive that they point into."""
    pointers = (ctypes.c_void_p * len(addresses))(*addresses)
    pointers.arrays = arrays  # type: ignore[attr-defined]
    return pointers


def _with_sums(
    zeros: Sequence[Any],
    run: Callable[[], None],
    totals: Sequence[tuple[Any, Any]],
    scaled: Sequence[tuple[Any, float]],
) -> None:
    """Run the parts of an operation that ends in sums, and add them up."""
    for array in zeros:
        array.fill(0)
    run()
    for room, array in totals:
        np.add.reduce(room, axis=0, out=array)
    for array, factor in scaled:
        array *= factor
