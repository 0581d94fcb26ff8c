"""Compiled element-wise loops inside of kernels that are more than that, such as recurrences.

A row says in its column ``loops`` that its kernel, or what binds it to arrays, takes a compiler
and hands it formulas.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpctrain.autograd.element import FOLDS, source
from hpctrain.graph.codegen import Loops, Operand, llvm_text
from hpctrain.graph.ir import Node
from hpctrain.graph.native import compiler

__all__ = ["inner_loop", "with_loops"]

Array = np.ndarray[Any, np.dtype[Any]]


def with_loops(node: Node) -> Node:
    """Return the node with the loops of its kernel compiled, if it has any.

    The same values within rounding.
    """
    row = node.row
    if not row.loops:
        return node
    if row.bind is not None:
        bind = functools.partial(row.bind, loop=inner_loop)
        scratch = row.scratch and functools.partial(row.scratch, loop=inner_loop)
        return replace(node, row=replace(row, bind=bind, scratch=scratch, loops=False))
    kernel = functools.partial(row.kernel, loop=inner_loop)
    return replace(node, row=replace(row, kernel=kernel, loops=False))


def inner_loop(
    formula: Callable[..., Sequence[Any]], ins: Sequence[Array], outs: Sequence[Array]
) -> Callable[[int], None]:
    """Compile a formula for arrays of several steps.

    Parameters
    ----------
    formula : callable
        From an element of each input to those of the outputs, or to what a row folds to; a
        function of a module, since what is made of it is kept.
    ins, outs : sequence of ndarray, shape (T, ..., H), one dtype, float32 or float64
        Of any strides, 0 too; an output may lie exactly over an input. An output for what a
        row folds to has one column.

    Returns
    -------
    callable
        Takes t and computes the outputs of that step.
    """
    arrays = [*ins, *outs]
    if not ins[0].size:
        return _nothing
    item, sizes = outs[0].itemsize, np.array(ins[0].shape[1:], np.int64)
    steps = [{item: 1, 0: 0}.get(a.strides[-1], 2) for a in ins]
    steps += [1 if a.strides[-1] == item else 2 for a in outs]  # 0 where there is one column
    function = _compiled(formula, outs[0].dtype.name, len(ins), tuple(steps), len(sizes))
    begins = np.array([a.ctypes.data for a in arrays], np.intp)
    moves = np.array([a.strides[0] for a in arrays], np.intp)
    strides = np.array([s for a in arrays for s in a.strides[1:]], np.int64)
    pointers, kept = begins.copy(), (arrays, sizes, strides)
    run = functools.partial(function, *(a.ctypes.data for a in (pointers, sizes, strides)))
    if len(ins[0]) == 1:
        return functools.partial(_run_one, run, (pointers, kept))
    return functools.partial(_run, run, begins, moves, pointers, kept)


def _run(
    run: Callable[[], None], begins: Array, moves: Array, pointers: Array, _kept: Any, t: int
) -> None:
    np.multiply(moves, t, out=pointers)
    np.add(pointers, begins, out=pointers)
    run()


def _run_one(run: Callable[[], None], _kept: Any, _: int) -> None:
    run()


def _nothing(_: int) -> None:
    """Stand for a loop over no element."""


@functools.cache
def _compiled(
    formula: Callable[..., Sequence[Any]],
    dtype: str,
    count: int,
    steps: tuple[int, ...],
    ndim: int,
) -> Callable[[Any, Any, Any], None]:
    made = formula(*(source(i, dtype) for i in range(count)))
    operands = [Operand(dtype, step) for step in steps]
    for i, x in enumerate(made, count):
        if x.op in FOLDS:
            operands[i] = Operand(dtype, 0)
    results = tuple(zip(made, operands[count:], strict=True))
    added = (False,) * len(made)
    return compiler(llvm_text(Loops(ndim, tuple(operands[:count]), results, added)))
