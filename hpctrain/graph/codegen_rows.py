"""LLVM text of a loop nest whose innermost axis is a few whole vectors: short rows.

For images with few channels the loop over vectors of a row is as long as what stands around
it. Here a row is written out; what is the same for all rows is loaded once, and sums over the
rows stay in registers. The order of every sum is that of `hpctrain.graph.codegen`, and so are
the bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.graph.codegen import Loops, NestWriter
from hpctrain.graph.instructions import WIDTH, Formulas, memory, vector

__all__ = ["Rows", "rows_text", "short_rows"]

_REGISTERS = 20  # of 32, for what stays: the rest is for the formulas
_WORTH = 8  # rows


@dataclass(frozen=True, slots=True)
class Rows:
    """Loops, and what is known of the innermost two.

    Attributes
    ----------
    loops : Loops
    vectors : int
        Of a row.
    still : tuple of bool
        For inputs, then results: whether all rows have the same elements.
    """

    loops: Loops
    vectors: int
    still: tuple[bool, ...]


def short_rows(
    loops: Loops, sizes: Sequence[int], strides: Sequence[Sequence[int]]
) -> Rows | None:
    """Return what is known if rows are short and what stays fits into registers, else None.

    Parameters
    ----------
    loops : Loops
    sizes : sequence of int
        Of each loop.
    strides : sequence of sequence of int
        For inputs, then results, along each loop.
    """
    if loops.ndim < 2 or sizes[-1] % WIDTH or sizes[-2] < _WORTH or loops.accumulators():
        return None
    if any(operand.step == 2 for operand in loops.operands):
        return None
    vectors, still = sizes[-1] // WIDTH, tuple(s[-2] == 0 for s in strides)
    width = [2 if o.dtype in ("float64", "int64") else 1 for o in loops.operands]
    each = [vectors if operand.step else 1 for operand in loops.operands]
    kept = sum(w * n for w, n, s in zip(width, each, still, strict=True) if s)
    return Rows(loops, vectors, still) if kept <= _REGISTERS >= vectors else None


def rows_text(rows: Rows) -> str:
    """Return the module; see `hpctrain.graph.codegen.llvm_text`."""
    return _RowWriter(rows).module()


class _RowWriter(NestWriter):
    def __init__(self, rows: Rows) -> None:
        super().__init__(rows.loops)
        self.vectors, self.still = rows.vectors, rows.still
        self.first = len(rows.loops.inputs)  # of the results among the operands

    def nest(self, depth: int, pointers: Sequence[str]) -> None:
        """Write the loop at ``depth`` and all inside of it."""
        if depth < self.loops.ndim - 2:
            super().nest(depth, pointers)
        else:
            self._rows(depth, pointers)

    def _operand(self, k: int, pointer: str) -> list[str]:
        """Load operand ``k`` for each vector of a row that begins at ``pointer``."""
        text, operand = self.text, self.loops.operands[k]
        if operand.step == 0:
            return [self.spread(pointer, operand.dtype)] * self.vectors
        kind = memory(operand.dtype)
        places = [text.at(pointer, str(j * WIDTH), kind) for j in range(self.vectors)]
        return [text.load(place, operand.dtype) for place in places]

    def _store(self, k: int, pointer: str, values: Sequence[str]) -> None:
        dtype = self.loops.operands[k].dtype
        for j, value in enumerate(values):
            place = self.text.at(pointer, str(j * WIDTH), memory(dtype))
            self.text.store(place, value, dtype)

    def _rows(self, depth: int, pointers: Sequence[str]) -> None:
        text, i, count = self.text, f"%i{depth}", len(pointers)
        kept = {k: self._operand(k, pointers[k]) for k in range(count) if self.still[k]}
        sums = [k for k in kept if k >= self.first]
        text.line("br label %before")
        text.label("before")
        text.line("br label %row")
        text.label("row")
        text.line(f"{i} = phi i64 [ 0, %before ], [ {i}.next, %row ]")
        for k in sums:
            kind = vector(self.loops.operands[k].dtype)
            for j, begun in enumerate(kept[k]):
                ways = f"[ {begun}, %before ], [ %sum{k}.{j}.next, %row ]"
                text.line(f"%sum{k}.{j} = phi {kind} {ways}")
        here = [
            p if self.still[k] else text.at(p, text.let(f"mul i64 {i}, {strides[depth]}"))
            for k, (p, strides) in enumerate(zip(pointers, self.strides, strict=True))
        ]
        self._row(kept, here)
        text.line(f"{i}.next = add i64 {i}, 1")
        more = text.let(f"icmp slt i64 {i}.next, {self.sizes[depth]}")
        text.line(f"br i1 {more}, label %row, label %finish")
        text.label("finish")
        for k in sums:
            names = [f"%sum{k}.{j}.next" for j in range(self.vectors)]
            self._store(k, pointers[k], names)

    def _row(self, kept: dict[int, list[str]], here: Sequence[str]) -> None:
        """Write what is done for one row; all loads of a vector come before its stores."""
        text = self.text
        summed = {self.first + n for n, added in enumerate(self.loops.summed) if added}
        moving = [k for k in range(self.first) if not self.still[k]]
        moving += [k for k in summed if not self.still[k]]
        taken = {**kept, **{k: self._operand(k, here[k]) for k in moving}}
        made: dict[int, list[str]] = {self.first + n: [] for n in range(len(self.formulas))}
        for j in range(self.vectors):
            formulas = Formulas(text, [taken[k][j] for k in range(self.first)])
            for n, formula in enumerate(self.formulas):
                k, value = self.first + n, formulas.write(formula)
                kind = vector(self.loops.operands[k].dtype)
                if k in summed and self.still[k]:
                    text.line(f"%sum{k}.{j}.next = fadd {kind} %sum{k}.{j}, {value}")
                elif k in summed:
                    value = text.let(f"fadd {kind} {taken[k][j]}, {value}")
                made[k].append(value)
        for k, values in made.items():
            if not self.still[k]:
                self._store(k, here[k], values)
