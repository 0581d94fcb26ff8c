"""LLVM text of a loop nest that evaluates formulas over arrays.

The innermost loop takes vectors of 16 elements. They are in the text, so nothing depends on
what a vectoriser makes of it; a machine with narrower registers takes two or four
instructions for one. Elements beyond the last whole vector go through the same body under a
mask. Sizes and strides are arguments, so one kernel serves arrays of all sizes.

All loads of a vector come before its stores: a result may lie exactly over an input.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.autograd.element import FOLDS, Element
from hpctrain.graph.elementary import expand
from hpctrain.graph.instructions import (
    DTYPES,
    TRUTHS,
    WIDTH,
    Formulas,
    Text,
    memory,
    suffix,
    vector,
)

__all__ = ["SYMBOL", "Loops", "NestWriter", "Operand", "llvm_text"]

SYMBOL = "kernel"
_SPAN = 8192  # elements of one partial sum along the innermost axis
_LANES = f"<{WIDTH} x i64> <{', '.join(f'i64 {i}' for i in range(WIDTH))}>"


@dataclass(frozen=True, slots=True)
class Operand:
    """An array of a kernel.

    Attributes
    ----------
    dtype : str
    step : int
        Along the innermost axis: 1 (contiguous), 0 (one element) or 2 (any stride).
    """

    dtype: str
    step: int


@dataclass(frozen=True, slots=True)
class Loops:
    """What a kernel computes.

    Attributes
    ----------
    ndim : int
        Number of nested loops, at least 1.
    inputs : tuple of Operand
    results : tuple of (Element, Operand)
        Formulas of the inputs, and where they go. Of a ``total`` or the ``largest`` along the
        innermost axis one element is stored, with step 0.
    summed : tuple of bool
        Whether a result is added to what is there; one of step 0 is a sum then, too.
    """

    ndim: int
    inputs: tuple[Operand, ...]
    results: tuple[tuple[Element, Operand], ...]
    summed: tuple[bool, ...]

    @property
    def operands(self) -> list[Operand]:
        """Inputs, then results."""
        return [*self.inputs, *(operand for _, operand in self.results)]

    def accumulators(self) -> list[int]:
        """Return the results that are one number for all of the innermost axis."""
        return [i for i, (_, operand) in enumerate(self.results) if operand.step == 0]


def llvm_text(loops: Loops) -> str:
    """Return the module that defines ``void kernel(pointers, sizes, strides)``.

    Parameters
    ----------
    loops : Loops

    Returns
    -------
    str
        ``pointers``: addresses of inputs, then results; ``sizes``: int64 for each loop, at
        least 1, the innermost last; ``strides``: int64, bytes, for each operand and loop.
    """
    return NestWriter(loops).module()


class NestWriter:
    """Writes the loops, the innermost of which may be of any length."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        self.text = Text()
        self.formulas = [expand(x.args[0] if x.op in FOLDS else x) for x, _ in loops.results]
        self.sums = loops.accumulators()
        self.largest = {k for k in self.sums if loops.results[k][0].op == "largest"}

    def module(self) -> str:
        """Return the module; see `llvm_text`."""
        self.write()
        head = f"define void @{SYMBOL}(ptr %pointers, ptr %sizes, ptr %strides) nounwind {{"
        return "\n".join([*sorted(self.text.declared), head, *self.text.lines, "}", ""])

    def _argument(self, array: str, index: int, kind: str = "i64") -> str:
        return self.text.let(f"load {kind}, ptr {self.text.at(array, str(8 * index))}")

    def write(self) -> None:
        """Write the function's lines."""
        text, ndim, operands = self.text, self.loops.ndim, self.loops.operands
        text.label("entry")
        pointers = [self._argument("%pointers", k, "ptr") for k in range(len(operands))]
        self.sizes = [self._argument("%sizes", d) for d in range(ndim)]
        self.strides = [
            [self._argument("%strides", k * ndim + d) for d in range(ndim)]
            for k in range(len(operands))
        ]
        self.whole = text.let(f"and i64 {self.sizes[-1]}, {-WIDTH}")
        self.left = text.let(f"sub i64 {self.sizes[-1]}, {self.whole}")
        self.nest(0, pointers)
        text.line("ret void")

    def nest(self, depth: int, pointers: Sequence[str]) -> None:
        """Write the loop at ``depth`` and all inside of it."""
        if depth == self.loops.ndim - 1:
            self._innermost(pointers)
            return
        text, i = self.text, f"%i{depth}"
        text.line(f"br label %pre{depth}")
        text.label(f"pre{depth}")
        text.line(f"br label %loop{depth}")
        text.label(f"loop{depth}")
        text.line(f"{i} = phi i64 [ 0, %pre{depth} ], [ {i}.next, %latch{depth} ]")
        offsets = [text.let(f"mul i64 {i}, {strides[depth]}") for strides in self.strides]
        self.nest(depth + 1, [text.at(p, o) for p, o in zip(pointers, offsets, strict=True)])
        text.line(f"br label %latch{depth}")
        text.label(f"latch{depth}")
        text.line(f"{i}.next = add i64 {i}, 1")
        more = text.let(f"icmp slt i64 {i}.next, {self.sizes[depth]}")
        text.line(f"br i1 {more}, label %loop{depth}, label %done{depth}")
        text.label(f"done{depth}")

    # The innermost loop: spans of vectors, then the rest under a mask

    def _innermost(self, pointers: Sequence[str]) -> None:
        text, inputs = self.text, self.loops.inputs
        self.pointers = pointers
        self.fixed = {
            k: self.spread(pointers[k], operand.dtype)
            for k, operand in enumerate(inputs)
            if operand.step == 0
        }
        text.line("br label %row")
        text.label("row")
        some = text.let(f"icmp sgt i64 {self.whole}, 0")
        text.line(f"br i1 {some}, label %span, label %rest")
        self._spans()
        text.label("rest")
        self._choose("sum", "row", "", "span.end", "total{}.next")
        some = text.let(f"icmp sgt i64 {self.left}, 0")
        text.line(f"br i1 {some}, label %tail, label %finish")
        text.label("tail")
        wide = text.splat(self.left, "i64")
        self._body(self.whole, "sum", text.let(f"icmp slt {_LANES}, {wide}"))
        text.line("br label %finish")
        text.label("finish")
        self._choose("final", "rest", "%sum{}", "tail", "sum{}.next")
        self._store_sums()

    def _spans(self) -> None:
        text = self.text
        text.label("span")
        text.line("%start = phi i64 [ 0, %row ], [ %end, %span.end ]")
        self._choose("total", "row", "", "span.end", "total{}.next")
        far = text.let(f"add i64 %start, {_SPAN}")
        near = text.let(f"icmp slt i64 {far}, {self.whole}")
        text.line(f"%end = select i1 {near}, i64 {far}, i64 {self.whole}")
        text.line("br label %vector")
        text.label("vector")
        text.line("%i = phi i64 [ %start, %span ], [ %i.next, %vector ]")
        self._choose("part", "span", "", "vector", "part{}.next")
        self._body("%i", "part")
        text.line(f"%i.next = add i64 %i, {WIDTH}")
        more = text.let("icmp slt i64 %i.next, %end")
        text.line(f"br i1 {more}, label %vector, label %span.end")
        text.label("span.end")
        for k in self.sums:
            text.line(f"%total{k}.next = {self._folded(k, f'%total{k}', f'%part{k}.next')}")
        more = text.let(f"icmp slt i64 %end, {self.whole}")
        text.line(f"br i1 {more}, label %span, label %rest")

    def _result(self, k: int) -> Operand:
        return self.loops.results[k][1]

    def _none(self, k: int) -> str:
        """Return a vector of what a fold of no element is."""
        if k not in self.largest:
            return "zeroinitializer"
        return f"splat ({DTYPES[self._result(k).dtype]} 0xFFF0000000000000)"

    def _folded(self, k: int, a: str, b: str) -> str:
        """Return the instruction that folds two vectors; NaN is never the largest."""
        kind = vector(self._result(k).dtype)
        if k not in self.largest:
            return f"fadd {kind} {a}, {b}"
        test = self.text.let(f"fcmp ogt {kind} {b}, {a}")
        return f"select {TRUTHS} {test}, {kind} {b}, {kind} {a}"

    def _choose(self, name: str, one: str, a: str, other: str, b: str) -> None:
        """Let folds called ``name`` be ``a``, or begin, coming from ``one``, else ``b``."""
        for k in self.sums:
            kind = vector(self._result(k).dtype)
            begun = a.format(k) or self._none(k)
            ways = f"[ {begun}, %{one} ], [ %{b.format(k)}, %{other} ]"
            self.text.line(f"%{name}{k} = phi {kind} {ways}")

    def _body(self, i: str, sums: str, mask: str = "") -> None:
        """Evaluate the formulas for the vector that begins at ``i``."""
        text, count = self.text, len(self.loops.inputs)
        loaded = [
            self.fixed[k] if k in self.fixed else self._load(k, i, mask) for k in range(count)
        ]
        added = {
            k: self._load(count + k, i, mask)
            for k, summed in enumerate(self.loops.summed)
            if summed and k not in self.sums
        }
        formulas = Formulas(text, loaded)
        values = [formulas.write(x) for x in self.formulas]
        for k, value in enumerate(values):
            kind = vector(self._result(k).dtype)
            if k in self.sums:
                if mask:
                    value = text.let(
                        f"select {TRUTHS} {mask}, {kind} {value}, {kind} {self._none(k)}"
                    )
                text.line(f"%{sums}{k}.next = {self._folded(k, f'%{sums}{k}', value)}")
                continue
            if k in added:
                value = text.let(f"fadd {kind} {added[k]}, {value}")
            dtype = self._result(k).dtype
            text.store(text.at(self.pointers[count + k], i, memory(dtype)), value, dtype, mask)

    def spread(self, pointer: str, dtype: str) -> str:
        """Load one element, and return a vector of it."""
        kind = memory(dtype)
        wide = self.text.splat(self.text.let(f"load {kind}, ptr {pointer}"), kind)
        return self.text.truth(wide, dtype)

    def _load(self, k: int, i: str, mask: str) -> str:
        text, operand = self.text, self.loops.operands[k]
        if operand.step == 1:
            pointer = text.at(self.pointers[k], i, memory(operand.dtype))
            return text.load(pointer, operand.dtype, mask)
        places = text.let(f"add {_LANES}, {text.splat(i, 'i64')}")
        stride = text.splat(self.strides[k][-1], "i64")
        offsets = text.let(f"mul <{WIDTH} x i64> {places}, {stride}")
        many = f"ptr {self.pointers[k]}, <{WIDTH} x i64> {offsets}"
        return text.gather(text.let(f"getelementptr i8, {many}"), operand.dtype, mask)

    def _store_sums(self) -> None:
        text, count = self.text, len(self.loops.inputs)
        for k in self.sums:
            dtype = self._result(k).dtype
            kind, final = memory(dtype), (vector(dtype), f"%final{k}")
            if k in self.largest:
                found = text.call(f"llvm.vector.reduce.fmax.{suffix(dtype)}", kind, final)
            else:
                name = f"llvm.vector.reduce.fadd.{suffix(dtype)}"
                found = text.call(name, kind, (kind, "-0.0"), final, flags="reassoc ")
            pointer = self.pointers[count + k]
            if self.loops.summed[k]:
                before = text.let(f"load {kind}, ptr {pointer}")
                found = text.let(f"fadd {kind} {before}, {found}")
            text.line(f"store {kind} {found}, ptr {pointer}")
