"""Compiled element-wise loops inside of kernels that are more than that, such as recurrences.

A row says in its column ``loops`` that its kernel takes a compiler, and hands it formulas.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpctrain.autograd.element import source
from hpctrain.graph.codegen import Loops, Operand, llvm_text
from hpctrain.graph.ir import Node
from hpctrain.graph.native import compiler

__all__ = ["inner_loop", "with_loops"]

Array = np.ndarray[Any, np.dtype[Any]]


def with_loops(node: Node) -> Node:
    """Return the node with the loops of its kernel compiled, if it has any.

    The same values within rounding.
    """
    if not node.row.loops:
        return node
    kernel = functools.partial(node.row.kernel, loop=inner_loop)
    return replace(node, row=replace(node.row, kernel=kernel, loops=False))


def inner_loop(
    formula: Callable[..., Sequence[Any]], ins: Sequence[Array], outs: Sequence[Array]
) -> Callable[[int], None]:
    """Compile a formula for arrays of several steps.

    Parameters
    ----------
    formula : callable
        From an element of each input to those of the outputs; a function of a module, since
        what is made of it is kept.
    ins, outs : sequence of ndarray, shape (T, B, H), one dtype, float32 or float64
        Of any strides, 0 too; an output may lie exactly over an input.

    Returns
    -------
    callable
        Takes t and computes the outputs of that step.
    """
    arrays = [*ins, *outs]
    if not outs[0].size:
        return _nothing
    item = outs[0].itemsize
    steps = [{item: 1, 0: 0}.get(a.strides[2], 2) for a in ins]
    steps += [1 if a.strides[2] == item else 2 for a in outs]  # 0 where there is one column
    function = _compiled(formula, outs[0].dtype.name, len(ins), tuple(steps))
    begins = np.array([a.ctypes.data for a in arrays], np.intp)
    moves = np.array([a.strides[0] for a in arrays], np.intp)
    strides = np.array([s for a in arrays for s in a.strides[1:]], np.int64)
    return functools.partial(
        _run, function, begins, moves, strides, np.array(outs[0].shape[1:], np.int64),
        np.empty_like(begins), arrays,
    )  # fmt: skip


def _run(  # noqa: PLR0913 (of one call)
    function: Callable[[Any, Any, Any], None], begins: Array, moves: Array, strides: Array,
    sizes: Array, pointers: Array, _arrays: Any, t: int,
) -> None:  # fmt: skip
    np.multiply(moves, t, out=pointers)
    np.add(pointers, begins, out=pointers)
    function(pointers.ctypes.data, sizes.ctypes.data, strides.ctypes.data)


def _nothing(_: int) -> None:
    """Stand for a loop over no element."""


@functools.cache
def _compiled(
    formula: Callable[..., Sequence[Any]], dtype: str, count: int, steps: tuple[int, ...]
) -> Callable[[Any, Any, Any], None]:
    made = formula(*(source(i, dtype) for i in range(count)))
    operands = [Operand(dtype, step) for step in steps]
    results = tuple(zip(made, operands[count:], strict=True))
    return compiler(llvm_text(Loops(2, tuple(operands[:count]), results, (False,) * len(made))))
