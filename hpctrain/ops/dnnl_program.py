"""Programs of oneDNN: kernels one after the other, over arrays and planned scratch.

A program is made once for shapes and attributes. It is made ready for arrays (addresses) as
often as needed, and what that returns only runs: nothing is allocated in a step. Between the
kernels it may have passes over memory, which are formulas that somebody else compiles.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hpctrain.ops.cells import Formula, Loop
from hpctrain.ops.dnnl import Library

__all__ = ["Bound", "Builder", "Pass", "Program", "View"]

_ALIGNMENT = 64
_FROM, _TO, _WEIGHTS, _BIAS, _SCRATCHPAD = 1, 17, 33, 41, 80
_WEIGHTS_LAYOUT = 131
Call = Callable[[], int | None]
_NOWHERE = -1  # the slot of which constants are part: it begins at address 0


class View(NamedTuple):
    """Float32 elements of a slot: strides count elements, ``at`` bytes."""

    slot: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    at: int = 0

    def array(self, places: Sequence[int]) -> Any:
        """Return the array, which does not own its memory."""
        found = _Lying(places[self.slot] + self.at, self)
        return np.asarray(found)[None]


class _Lying:
    """What NumPy asks for to see memory as an array."""

    def __init__(self, address: int, view: View) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": view.shape,
            "strides": tuple(4 * s for s in view.strides),
            "typestr": "<f4",
            "version": 3,
        }


class Pass(NamedTuple):
    """A formula over views of one shape; a view of what rows fold to has one column."""

    formula: Formula
    ins: tuple[View, ...]
    outs: tuple[View, ...]

    def ready(self, places: Sequence[int], loop: Loop) -> Callable[[], None]:
        """Return what runs it."""
        ins, outs = ([v.array(places) for v in views] for views in (self.ins, self.outs))
        return functools.partial(loop(self.formula, ins, outs), 0)


@dataclass(frozen=True, slots=True)
class Program:
    """Kernels, and the arrays that they work on.

    Attributes
    ----------
    library : Library
    calls : tuple of (primitive, tuple of (argument, slot)), or of (Pass, ())
        A slot is the number of an array: first those of the caller, then those in scratch,
        parts of others and constants, as they come.
    made : tuple
        Descriptions of the kernels; they own the layouts that these have chosen.
    layouts : tuple
        Of each slot.
    offsets : tuple of (slot or None, int)
        For each slot that is not the caller's, in which array it lies and at which byte; None:
        in scratch. A constant is known by its address.
    constants : tuple
        Arrays that the program owns.
    nbytes : int
        Of scratch.
    threads : int
        That each kernel takes.
    names : tuple of str
        What the library calls its kernels.
    spare : list of Bound
        Bound before, for other arrays; each serves one call at a time.
    """

    library: Library
    calls: tuple[tuple[Any, tuple[tuple[int, int], ...]], ...]
    made: tuple[Any, ...]
    layouts: tuple[Any, ...]
    offsets: tuple[tuple[int | None, int], ...]
    nbytes: int
    threads: int
    names: tuple[str, ...]
    constants: tuple[Any, ...] = ()
    spare: list["Bound"] = field(default_factory=list, compare=False, repr=False)

    def run(self, arrays: Sequence[Any], scratch: Any) -> None:
        """Run on arrays that may be others the next time; see `bound`."""
        try:
            bound = self.spare.pop()
        except IndexError:
            bound = self.bound(arrays, scratch)
        else:
            bound.take(arrays, scratch)
        try:
            bound.run()
        finally:
            bound.held = ()
            self.spare.append(bound)

    def ready(
        self, arrays: Sequence[Any], scratch: Any, loop: Loop | None = None
    ) -> Callable[[], None]:
        """Return the program bound to arrays, to be run; see `bound`."""
        return self.bound(arrays, scratch, loop).run

    def bound(self, arrays: Sequence[Any], scratch: Any, loop: Loop | None = None) -> "Bound":
        """Return the program bound to arrays.

        Parameters
        ----------
        arrays : sequence of array
            C-contiguous, on the host; they must stay where they are.
        scratch : array of uint8
            At least ``nbytes``.
        loop : callable, optional
            Compiles the passes, if there are any.
        """
        library, places = self.library, self.places(arrays, scratch)
        memories = [library.memory(d, p) for d, p in zip(self.layouts, places, strict=True)]
        execute, new = library.lib.dnnl_primitive_execute, library.ffi.new
        calls: list[Call] = []
        for made, args in self.calls:
            if isinstance(made, Pass):
                assert loop is not None, "a pass needs somebody to compile it"
                calls.append(made.ready(places, loop))
                continue
            given = [{"arg": number, "memory": memories[slot]} for number, slot in args]
            kept = new("dnnl_exec_arg_t[]", given)
            calls.append(functools.partial(execute, made, library.stream, len(args), kept))
        return Bound(self, calls, memories, (arrays, scratch))

    def places(self, arrays: Sequence[Any], scratch: Any) -> list[int]:
        """Return the address of each slot."""
        assert scratch.nbytes >= self.nbytes, "scratch was planned for another program"
        start = _aligned(scratch.ctypes.data)
        found = [a.ctypes.data for a in arrays]
        for base, at in self.offsets:
            found.append((start if base is None else found[base] if base >= 0 else 0) + at)
        return found


class Bound:
    """A program with its arrays; holds what the library has addresses of.

    Attributes
    ----------
    calls : sequence of callable
        Kernels, which return their status, and passes, in the order in which they were added.
    memories : sequence
        A handle for each slot.
    """

    def __init__(
        self, program: Program, calls: Sequence[Call], memories: Sequence[Any], held: Any
    ) -> None:
        self.program, self.calls, self.memories, self.held = program, calls, memories, held

    def run(self, calls: Sequence[Call] | None = None) -> None:
        """Run some of its ``calls``, or all."""
        library = self.program.library
        library.use_threads(self.program.threads)
        for call in self.calls if calls is None else calls:
            if status := call():
                raise library.failed(status)

    def take(self, arrays: Sequence[Any], scratch: Any) -> None:
        """Work on other arrays from now on."""
        for slot, address in enumerate(self.program.places(arrays, scratch)):
            self.move(slot, address)
        self.held = arrays, scratch

    def move(self, slot: int, address: int) -> None:
        """Let an array lie at another address from now on."""
        library = self.program.library
        where = library.ffi.cast("void *", address)
        library.lib.dnnl_memory_set_data_handle(self.memories[slot], where)


class Builder:
    """Puts a program together, in the order in which its kernels run."""

    def __init__(self, library: Library, layouts: Sequence[Any]) -> None:
        self.library, self.layouts = library, list(layouts)
        self.outer = len(self.layouts)
        self.calls: list[Any] = []
        self.offsets: list[tuple[int | None, int]] = []
        self.constants: list[Any] = []
        self.nbytes = 0
        self.names: list[str] = []
        self.made: list[Any] = []

    def slot(self, layout: Any) -> int:
        """Add an array in scratch and return its slot."""
        self.layouts.append(layout)
        self.offsets.append((None, self.nbytes))
        self.nbytes += -(-self.library.nbytes(layout) // _ALIGNMENT) * _ALIGNMENT
        return len(self.layouts) - 1

    def part(self, slot: int, layout: Any, at: int) -> int:
        """Add an array that begins at byte ``at`` of another one."""
        self.layouts.append(layout)
        self.offsets.append((slot, at))
        return len(self.layouts) - 1

    def constant(self, layout: Any, array: Any) -> int:
        """Add an array whose elements do not change."""
        self.constants.append(array)
        self.layouts.append(layout)
        self.offsets.append((_NOWHERE, array.ctypes.data))
        return len(self.layouts) - 1

    def kernel(self, made: Any) -> Callable[[Sequence[tuple[int, int]]], None]:
        """Return what adds calls of one kernel, which share its temporary memory."""
        library, pad = self.library, self.library.scratchpad(made)
        more = [(_SCRATCHPAD, self.slot(pad))] if library.nbytes(pad) else []
        self.made.append(made)
        self.names.append(library.implementation(made))
        primitive = library.primitive(made)
        return lambda args: self.calls.append((primitive, (*args, *more)))

    def over(self, formula: Formula, ins: Sequence[View], outs: Sequence[View]) -> None:
        """Add a pass."""
        self.calls.append((Pass(formula, tuple(ins), tuple(outs)), ()))

    def call(self, made: Any, args: Sequence[tuple[int, int]]) -> None:
        """Add the kernel that ``made`` describes."""
        self.kernel(made)(args)

    def layer(self, made: Any) -> None:
        """Add a kernel from source, weight and maybe a bias, the caller's, to the result.

        The weight is copied into the layout that the kernel has chosen.
        """
        weight = self.taken(1, self.library.chosen(made, _WEIGHTS_LAYOUT))
        args = [(_FROM, 0), (_WEIGHTS, weight), (_TO, self.outer - 1)]
        self.call(made, [*args, (_BIAS, 2)] if self.outer > 3 else args)

    def taken(self, slot: int, layout: Any) -> int:
        """Return ``slot``, or a copy of it in ``layout`` if that is another."""
        if self.library.same(self.layouts[slot], layout):
            return slot
        other = self.slot(layout)
        made = self.library.reorder(self.layouts[slot], layout)
        self.call(made, [(_FROM, slot), (_TO, other)])
        return other

    def given(self, slot: int, layout: Any) -> tuple[int, Callable[[], None]]:
        """Return where a kernel may write ``layout``, and what to do after it."""
        if self.library.same(self.layouts[slot], layout):
            return slot, lambda: None
        other = self.slot(layout)
        made = self.library.reorder(layout, self.layouts[slot])
        return other, lambda: self.call(made, [(_FROM, other), (_TO, slot)])

    def program(self, threads: int) -> Program:
        """Return what was put together."""
        nbytes = self.nbytes + _ALIGNMENT if self.nbytes else 0
        layouts = tuple(self.layouts)
        return Program(self.library, tuple(self.calls), tuple(self.made), layouts,
                       tuple(self.offsets), nbytes, threads, tuple(self.names),
                       tuple(self.constants))  # fmt: skip


def _aligned(address: int) -> int:
    return -(-address // _ALIGNMENT) * _ALIGNMENT
