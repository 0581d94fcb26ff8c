"""Sums of thin products, compiled: each product is rounded, and added in twice the precision.

The gradient of a layer's weights is a product over samples. Of a few samples, it is a large
matrix that takes longer to write, and then to add up, than to compute. So factors of several
products are kept, and each element of the sum is loaded and stored once for all of them:

    sums[i, j] += float64(left[s, :, i] @ right[s, :, j])    for one s after the other

with the terms of a product added in order, in float32. So the bits do not depend on how many
are kept at a time.
"""

import ctypes
import functools
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hpctrain.graph.codegen import SYMBOL
from hpctrain.graph.native import Compiled, cache_directory, compile_text
from hpctrain.graph.threads import threads, together

__all__ = ["ThinProducts", "thin_text"]

_TILE = 64  # columns that lie together, of all kept factors: 32 KiB of 16 with 8 terms
_WIDTHS = ((4, 16), (1, 16), (1, 1))  # vectors, and their length, of the columns done at once
_WORTH = 1 << 15  # elements for each thread; fewer take less time than to wake it
# Registers of 512 bits, where there are any: LLVM takes the half of them if it may choose.
_WIDE = '"prefer-vector-width"="512" "min-legal-vector-width"="512"'


class ThinProducts:
    """Factors that are kept, and the kernel that adds their products.

    Parameters
    ----------
    terms, rows, columns : int
        A left factor has shape (terms, rows), a right one (terms, columns).
    slots : int
        How many pairs of factors there is room for.

    Attributes
    ----------
    count : int
        How many are kept.
    """

    def __init__(self, terms: int, rows: int, columns: int, slots: int) -> None:
        self.shape, self.slots, self.count = (terms, rows, columns), slots, 0
        # Laid out as they are read: any other way the kernel waits for pages.
        self._left = np.empty((rows, slots, terms), np.float32)
        self._right = np.zeros((-(-columns // _TILE), slots, terms, _TILE), np.float32)

    @functools.cached_property
    def compiled(self) -> Compiled:
        """The kernel, compiled or loaded when it is first asked for."""
        return compile_text(thin_text(*self.shape, self.slots), cache_directory())

    def keep(self, left: Any, right: Any) -> None:
        """Copy a pair of factors into a free slot."""
        (terms, _, columns), at = self.shape, self.count
        self._left[:, at] = left.T
        whole = columns // _TILE
        end = whole * _TILE
        tiles = right[:, :end].reshape(terms, whole, _TILE).transpose(1, 0, 2)
        self._right[:whole, at] = tiles
        if end < columns:
            self._right[whole, at, :, : columns - end] = right[:, end:]
        self.count += 1

    def add(self, sums: Any, span: tuple[int, int]) -> None:
        """Add the products of all kept factors to some of their sums.

        Parameters
        ----------
        sums : array, shape (stop - start,), float64
        span : (start, stop)
            Which elements of the flattened matrix of sums these are.
        """
        calls = [
            self._call(sums.ctypes.data - 8 * span[0], piece)
            for block in _blocks(span, self.shape[2])
            for piece in _shared(block)
        ]
        together(calls)()

    def _call(self, sums: int, block: Sequence[int]) -> partial[None]:
        pointers = (ctypes.c_void_p * 3)(self._left.ctypes.data, self._right.ctypes.data, sums)
        sizes = (ctypes.c_int64 * 5)(self.count, *block)
        return partial(self.compiled.function, pointers, sizes, sizes)


def _blocks(span: tuple[int, int], columns: int) -> list[tuple[int, int, int, int]]:
    """Cut a span of a flattened matrix into blocks (first row, end, first column, end)."""
    (first, begin), (last, end) = divmod(span[0], columns), divmod(span[1], columns)
    if first == last:
        return [(first, first + 1, begin, end)]
    blocks = [(first, first + 1, begin, columns)] if begin else []
    blocks.append((first + bool(begin), last, 0, columns))
    if end:
        blocks.append((last, last + 1, 0, end))
    return [b for b in blocks if b[0] < b[1]]


def _shared(block: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    """Cut the rows of a block for the threads."""
    first, end, *columns = block
    size = (end - first) * (columns[1] - columns[0])
    step = -(-(end - first) // max(1, min(threads(), size // _WORTH)))
    return [
        (row, min(row + step, end), columns[0], columns[1]) for row in range(first, end, step)
    ]


def thin_text(terms: int, rows: int, columns: int, slots: int) -> str:
    """Return the kernel as LLVM text.

    It takes ``{left, right, sums}``, then ``{s, first row, end, first column, end}``, with
    ``sums`` the address of the first element of the whole matrix.
    """
    lines = [
        *(f"declare <{n} x float> @llvm.fma.v{n}f32({', '.join([f'<{n} x float>'] * 3)})"
          for n in (1, 16)),
        f"define void @{SYMBOL}(ptr %pointers, ptr %sizes, ptr %unused) nounwind {_WIDE} {{",
        "entry:",
    ]  # fmt: skip
    for k, name in enumerate(("left", "right", "sums")):
        lines += [f"%{name}.at = getelementptr ptr, ptr %pointers, i64 {k}",
                  f"%{name} = load ptr, ptr %{name}.at"]  # fmt: skip
    for k, name in enumerate(("count", "i.first", "i.end", "j.first", "j.end")):
        lines += [f"%{name}.at = getelementptr i64, ptr %sizes, i64 {k}",
                  f"%{name} = load i64, ptr %{name}.at"]  # fmt: skip
    lines += [
        f"%j.over = add i64 %j.first, {_TILE - 1}",
        f"%j.edge = and i64 %j.over, {-_TILE}",
        "%j.near = icmp slt i64 %j.edge, %j.end",
        "%j.lead = select i1 %j.near, i64 %j.edge, i64 %j.end",
    ]
    # One by one up to the edge of a tile, whole tiles, then what is left of the last.
    parts = [((1, 1), "%j.lead"), *((width, "%j.end") for width in _WIDTHS)]
    before, start = "entry", "%j.first"
    for number, ((vectors, length), end) in enumerate(parts):
        loops = _Loops(f"w{number}", vectors, length, (terms, columns, slots))
        lines += loops.text(before, start, end)
        before, start = f"w{number}.done", f"%w{number}.j.now"
    return "\n".join([*lines, "ret void", "}"])


class _Loops:
    """Loops over columns, ``vectors * length`` at once, then over rows, then over products."""

    def __init__(
        self, name: str, vectors: int, length: int, shape: tuple[int, int, int]
    ) -> None:
        self.name, self.vectors, self.length = name, vectors, length
        self.terms, self.columns, self.slots = shape
        self.narrow, self.wide = f"<{length} x float>", f"<{length} x double>"

    def text(self, before: str, start: str, end: str) -> list[str]:
        """Return the lines, for columns from ``start``; the block ``before`` leads here."""
        n, across = self.name, range(self.vectors)
        lines = [
            f"br label %{n}.j", f"{n}.j:",
            f"%{n}.j.now = phi i64 [{start}, %{before}], [%{n}.j.next, %{n}.i]",
            f"%{n}.j.next = add i64 %{n}.j.now, {self.vectors * self.length}",
            f"%{n}.j.fits = icmp sle i64 %{n}.j.next, {end}",
            f"br i1 %{n}.j.fits, label %{n}.rows, label %{n}.done", f"{n}.rows:",
            f"br label %{n}.i", f"{n}.i:",
            f"%{n}.i.now = phi i64 [%i.first, %{n}.rows], [%{n}.i.next, %{n}.store]",
            f"%{n}.i.more = icmp slt i64 %{n}.i.now, %i.end",
            f"br i1 %{n}.i.more, label %{n}.load, label %{n}.j", f"{n}.load:",
            f"%{n}.row = mul i64 %{n}.i.now, {self.columns}",
            f"%{n}.element = add i64 %{n}.row, %{n}.j.now",
            f"%{n}.to = getelementptr double, ptr %sums, i64 %{n}.element",
        ]  # fmt: skip
        for v in across:
            lines += self._at(f"to{v}", "double", f"%{n}.to", v * self.length)
            lines.append(f"%{n}.old{v} = load {self.wide}, ptr %{n}.to{v}, align 8")
        lines += [
            f"br label %{n}.s",
            f"{n}.s:",
            f"%{n}.s.now = phi i64 [0, %{n}.load], [%{n}.s.next, %{n}.product]",
        ]
        lines += [f"%{n}.sum{v} = phi {self.wide} [%{n}.old{v}, %{n}.load], "
                  f"[%{n}.new{v}, %{n}.product]" for v in across]  # fmt: skip
        lines += [f"%{n}.s.more = icmp slt i64 %{n}.s.now, %count",
                  f"br i1 %{n}.s.more, label %{n}.product, label %{n}.store",
                  f"{n}.product:", *self._product(), f"%{n}.s.next = add i64 %{n}.s.now, 1",
                  f"br label %{n}.s", f"{n}.store:"]  # fmt: skip
        lines += [f"store {self.wide} %{n}.sum{v}, ptr %{n}.to{v}, align 8" for v in across]
        return [
            *lines,
            f"%{n}.i.next = add i64 %{n}.i.now, 1",
            f"br label %{n}.i",
            f"{n}.done:",
        ]

    def _product(self) -> list[str]:
        """Return what makes one product and adds it."""
        n, kind, length = self.name, self.narrow, self.length
        lines = [
            f"%{n}.l0 = mul i64 %{n}.i.now, {self.slots}",
            f"%{n}.l1 = add i64 %{n}.l0, %{n}.s.now",
            f"%{n}.l2 = mul i64 %{n}.l1, {self.terms}",
            f"%{n}.l = getelementptr float, ptr %left, i64 %{n}.l2",
            f"%{n}.tile = udiv i64 %{n}.j.now, {_TILE}",
            f"%{n}.r0 = mul i64 %{n}.tile, {self.slots}",
            f"%{n}.r1 = add i64 %{n}.r0, %{n}.s.now",
            f"%{n}.r2 = mul i64 %{n}.r1, {self.terms * _TILE}",
            f"%{n}.r3 = urem i64 %{n}.j.now, {_TILE}",
            f"%{n}.r4 = add i64 %{n}.r2, %{n}.r3",
            f"%{n}.r = getelementptr float, ptr %right, i64 %{n}.r4",
        ]
        for k in range(self.terms):
            lines += self._at(f"l.{k}", "float", f"%{n}.l", k)
            lines += [
                f"%{n}.a{k} = load float, ptr %{n}.l.{k}, align 4",
                f"%{n}.b{k} = insertelement {kind} poison, float %{n}.a{k}, i32 0",
                f"%{n}.c{k} = shufflevector {kind} %{n}.b{k}, {kind} poison, "
                f"<{length} x i32> zeroinitializer",
            ]
            for v in range(self.vectors):
                at, made = f"r.{k}.{v}", f"%{n}.p{k}.{v}"
                lines += self._at(at, "float", f"%{n}.r", k * _TILE + v * length)
                lines.append(f"%{n}.d{k}.{v} = load {kind}, ptr %{n}.{at}, align 4")
                pair = f"{kind} %{n}.c{k}, {kind} %{n}.d{k}.{v}"
                lines.append(
                    f"{made} = call {kind} @llvm.fma.v{length}f32({pair}, "
                    f"{kind} %{n}.p{k - 1}.{v})"
                    if k
                    else f"{made} = fmul {kind} %{n}.c{k}, %{n}.d{k}.{v}"
                )
        for v in range(self.vectors):
            lines += [
                f"%{n}.w{v} = fpext {kind} %{n}.p{self.terms - 1}.{v} to {self.wide}",
                f"%{n}.new{v} = fadd {self.wide} %{n}.sum{v}, %{n}.w{v}",
            ]
        return lines

    def _at(self, name: str, kind: str, base: str, offset: int) -> list[str]:
        return [f"%{self.name}.{name} = getelementptr {kind}, ptr {base}, i64 {offset}"]
