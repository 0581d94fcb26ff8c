"""Updates in one pass over memory, compiled, with the bits of those that NumPy makes.

NumPy reads and writes a block once for every operation of an update. Here all is one loop,
which can also add up several gradients before, and leave the new parameters in several places:
what a server does with a slice. Without a compiler there is none of it.
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hpctrain.autograd.element import Element, source
from hpctrain.graph.codegen import Loops, Operand, llvm_text
from hpctrain.graph.native import available, compiler

__all__ = ["Formula", "compiled_update"]

Array = np.ndarray[Any, np.dtype[Any]]


class Formula(Hashable, Protocol):
    """An optimizer whose update is known as a formula; hashable by what the formula holds."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of its states."""

    def formula(
        self, weight: Element, grad: Element, states: Sequence[Element], numbers: Any
    ) -> list[Element]:
        """Return the new states, and last the new weight."""


class _Kernel(NamedTuple):
    """A compiled update and the strides of its operands."""

    function: Callable[[Any, Any, Any], None]
    strides: Array


def compiled_update(  # noqa: PLR0913 (arrays of four kinds)
    optimizer: Formula,
    decays: bool,
    numbers: Sequence[float],
    weight: Array,
    grads: Sequence[Array],
    states: Sequence[Array],
    copies: Sequence[Array] = (),
) -> bool:
    """Update in place, if that can be compiled here; return whether it was done.

    Parameters
    ----------
    optimizer : Formula
    decays : bool
        Whether there is weight decay.
    numbers : sequence of float
        Factor on the gradient, and what the formula takes; rounded to the dtype of the arrays.
    weight : ndarray, shape (n,), contiguous, as are all others
    grads : sequence of ndarray
        Their sum, in this order, is the gradient.
    states : sequence of ndarray
        As the optimizer names them.
    copies : sequence of ndarray
        Get the new parameters too.
    """
    arrays = [weight, *grads, *states, *copies]
    if not available() or weight.dtype.char not in "fd":
        return False
    if any(a.dtype != weight.dtype or not a.flags.c_contiguous for a in arrays):
        return False
    key = weight.dtype.name, decays, len(grads), len(numbers), len(copies)
    function, strides = _kernel(optimizer, *key)
    given = np.array(numbers, weight.dtype)
    fixed = range(given.ctypes.data, given.ctypes.data + given.nbytes, given.itemsize)
    places = [a.ctypes.data for a in (weight, *grads, *states)]
    after = [a.ctypes.data for a in (*states, weight, *copies)]
    pointers = np.array([*places, *fixed, *after], np.uintp)
    sizes = np.array([weight.size], np.int64)
    function(pointers.ctypes.data, sizes.ctypes.data, strides.ctypes.data)
    return True


@functools.cache
def _kernel(
    optimizer: Formula, dtype: str, decays: bool, grads: int, numbers: int, copies: int
) -> _Kernel:
    count = 1 + grads + len(optimizer.state_names)
    along, fixed = Operand(dtype, 1), Operand(dtype, 0)
    weight, *rest = [source(i, dtype) for i in range(count + numbers)]
    grad = sum(rest[1:grads], rest[0])
    states, (factor, decay, *others) = rest[grads : count - 1], rest[count - 1 :]
    known = [decay if decays else None, *others]
    made = optimizer.formula(weight, grad * factor, states, known)
    results = [*made, *[made[-1]] * copies]
    loops = Loops(
        1,
        (along,) * count + (fixed,) * numbers,
        tuple((x, along) for x in results),
        (False,) * len(results),
    )
    itemsize = np.dtype(dtype).itemsize
    strides = [itemsize] * count + [0] * numbers + [itemsize] * len(results)
    return _Kernel(compiler(llvm_text(loops)), np.array(strides, np.int64))
