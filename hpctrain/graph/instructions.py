"""LLVM instructions for formulas: each expression once, on vectors of 16 elements.

Arithmetic is that of NumPy, operation by operation: nothing is reordered or contracted
outside of the expansions of `hpctrain.graph.elementary`, so infinities and NaN go where they
go there.
"""

import math
import struct
from collections.abc import Sequence

from hpctrain.autograd.element import Element, in_order

__all__ = ["DTYPES", "TRUTHS", "WIDTH", "Formulas", "Text", "memory", "suffix", "vector"]

WIDTH = 16  # elements of a vector: one AVX-512 register of float32
DTYPES = {
    "float32": "float", "float64": "double", "int32": "i32", "int64": "i64", "bool": "i1",
    "bfloat16": "bfloat",
}  # fmt: skip
_BYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1, "bfloat16": 2}
_MEMORY = {"bool": "i8", "bfloat16": "i16"}  # types that lie in memory as another
TRUTHS = f"<{WIDTH} x i1>"


def vector(dtype: str) -> str:
    """Return the LLVM type of a vector of ``dtype``."""
    return f"<{WIDTH} x {DTYPES[dtype]}>"


def memory(dtype: str) -> str:
    """Return the LLVM type of one element of ``dtype`` in memory."""
    return _MEMORY.get(dtype, DTYPES[dtype])


def suffix(dtype: str) -> str:
    """Return what intrinsics on vectors of ``dtype`` in memory have behind their names."""
    return f"v{WIDTH}{'f' if dtype[0] == 'f' else 'i'}{8 * _BYTES[dtype]}"


def _literal(value: float, dtype: str) -> str:
    """Write a number; LLVM wants the bits of a double for anything not short."""
    if dtype == "bool":
        return str(bool(value)).lower()
    if dtype.startswith("int"):
        return str(int(value))
    if dtype == "bfloat16":
        return f"0xR{struct.unpack('I', struct.pack('f', value))[0] >> 16:04X}"
    if dtype == "float32" and math.isfinite(value):
        value = struct.unpack("f", struct.pack("f", value))[0]
    return f"0x{struct.unpack('Q', struct.pack('d', value))[0]:016X}"


_FLOATING = {"add": "fadd", "subtract": "fsub", "multiply": "fmul", "divide": "fdiv"}
_WHOLE = {"add": "add", "subtract": "sub", "multiply": "mul"}
_BITWISE = {"and": "and", "or": "or", "shift_left": "shl", "shift_right": "ashr"}
# Ordered comparisons are false where one side is NaN, as in NumPy.
_COMPARE = {
    "less": ("olt", "slt"), "less_equal": ("ole", "sle"), "equal": ("oeq", "eq"),
    "not_equal": ("une", "ne"),
}  # fmt: skip


class Text:
    """Lines of a function, with a fresh name for every value."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self._count = 0

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append("  " + text)

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")

    def let(self, text: str) -> str:
        """Add an instruction and return the name of its result."""
        self._count += 1
        name = f"%t{self._count}"
        self.line(f"{name} = {text}")
        return name

    def call(self, name: str, result: str, *args: tuple[str, str], flags: str = "") -> str:
        """Call an intrinsic; ``args`` are pairs of type and value."""
        types = ", ".join(kind for kind, _ in args)
        self.declared.add(f"declare {result} @{name}({types})")
        given = ", ".join(f"{kind} {value}" for kind, value in args)
        text = f"call {flags}{result} @{name}({given})"
        if result == "void":
            self.line(text)
            return ""
        return self.let(text)

    def at(self, pointer: str, index: str, kind: str = "i8") -> str:
        """Return ``pointer`` moved on by ``index`` elements."""
        return self.let(f"getelementptr {kind}, ptr {pointer}, i64 {index}")

    def splat(self, value: str, kind: str) -> str:
        """Return a vector of equal elements."""
        wide = f"<{WIDTH} x {kind}>"
        one = self.let(f"insertelement {wide} poison, {kind} {value}, i64 0")
        zeros = f"<{WIDTH} x i32> zeroinitializer"
        return self.let(f"shufflevector {wide} {one}, {wide} poison, {zeros}")

    def truth(self, value: str, dtype: str) -> str:
        """Return ``value`` as it was loaded as one that formulas can take."""
        if dtype == "bfloat16":
            return self.let(f"bitcast <{WIDTH} x i16> {value} to {vector(dtype)}")
        if dtype != "bool":
            return value
        return self.let(f"icmp ne <{WIDTH} x i8> {value}, zeroinitializer")

    def load(self, pointer: str, dtype: str, mask: str = "") -> str:
        """Load a vector; zeros where there is a mask and it is false."""
        wide = f"<{WIDTH} x {memory(dtype)}>"
        if not mask:
            value = self.let(f"load {wide}, ptr {pointer}, align {_BYTES[dtype]}")
            return self.truth(value, dtype)
        under = ((TRUTHS, mask), (wide, "zeroinitializer"))
        where = (("ptr", pointer), ("i32", str(_BYTES[dtype])))
        value = self.call(f"llvm.masked.load.{suffix(dtype)}.p0", wide, *where, *under)
        return self.truth(value, dtype)

    def gather(self, pointers: str, dtype: str, mask: str = "") -> str:
        """Load the elements that a vector of pointers points to."""
        wide = f"<{WIDTH} x {memory(dtype)}>"
        under = ((TRUTHS, mask or "splat (i1 true)"), (wide, "zeroinitializer"))
        where = ((f"<{WIDTH} x ptr>", pointers), ("i32", str(_BYTES[dtype])))
        name = f"llvm.masked.gather.{suffix(dtype)}.v{WIDTH}p0"
        return self.truth(self.call(name, wide, *where, *under), dtype)

    def store(self, pointer: str, value: str, dtype: str, mask: str = "") -> None:
        """Store a vector, or those elements where the mask is true."""
        wide = f"<{WIDTH} x {memory(dtype)}>"
        if dtype == "bool":
            value = self.let(f"zext {TRUTHS} {value} to {wide}")
        if dtype == "bfloat16":
            value = self.let(f"bitcast {vector(dtype)} {value} to {wide}")
        if not mask:
            self.line(f"store {wide} {value}, ptr {pointer}, align {_BYTES[dtype]}")
            return
        where = (("ptr", pointer), ("i32", str(_BYTES[dtype])), (TRUTHS, mask))
        self.call(f"llvm.masked.store.{suffix(dtype)}.p0", "void", (wide, value), *where)


# Formulas


class Formulas:
    """Writes formulas for one vector; equal expressions are written once."""

    def __init__(self, text: Text, inputs: Sequence[str]) -> None:
        self.text = text
        self.inputs = inputs
        self.known: dict[tuple[object, ...], str] = {}
        self.names: dict[int, str] = {}

    def write(self, root: Element) -> str:
        """Write ``root`` and return its name."""
        for x in in_order([root]):
            if id(x) not in self.names:
                args = [self.names[id(a)] for a in x.args]
                types = [a.dtype for a in x.args]
                # repr tells 0.0 from -0.0, and one NaN is as good as another.
                key = (x.op, *args, *types, x.dtype, repr(x.value))
                if key not in self.known:
                    self.known[key] = self._operation(x, args)
                self.names[id(x)] = self.known[key]
        return self.names[id(root)]

    def _operation(self, x: Element, args: list[str]) -> str:
        if x.op == "input":
            return self.inputs[int(x.value)]
        if x.op == "constant":
            return f"splat ({DTYPES[x.dtype]} {_literal(x.value, x.dtype)})"
        if x.op in _COMPARE:
            return self._compare(x, args)
        if x.op in _BITWISE:
            return self.text.let(f"{_BITWISE[x.op]} {vector(x.dtype)} {args[0]}, {args[1]}")
        if x.op in _FLOATING:
            word = (_FLOATING if x.dtype[0] == "f" else _WHOLE)[x.op]
            return self.text.let(f"{word} {vector(x.dtype)} {args[0]}, {args[1]}")
        method = getattr(self, f"_{x.op}")
        result: str = method(x, args)
        return result

    def _compare(self, x: Element, args: list[str]) -> str:
        kind = x.args[0].dtype
        floating, whole = _COMPARE[x.op]
        word = f"fcmp {floating}" if kind[0] == "f" else f"icmp {whole}"
        if kind == "bool":  # as a signed number of one bit, true is -1
            word = word.replace("slt", "ult").replace("sle", "ule")
        return self.text.let(f"{word} {vector(kind)} {args[0]}, {args[1]}")

    def _select(self, condition: str, dtype: str, a: str, b: str) -> str:
        kind = vector(dtype)
        return self.text.let(f"select {TRUTHS} {condition}, {kind} {a}, {kind} {b}")

    def _where(self, x: Element, args: list[str]) -> str:
        return self._select(args[0], x.dtype, args[1], args[2])

    def _extreme(self, x: Element, args: list[str], word: str) -> str:
        a, b = args
        kind = vector(x.dtype)
        if x.dtype[0] != "f":
            test = self.text.let(f"icmp s{word} {kind} {a}, {b}")
            return self._select(test, x.dtype, a, b)
        if x.args[0].op == "constant":
            a, b = b, a
        # Where one is NaN the comparison is false and the second is taken; so the one that
        # may be NaN comes second, and if both may, another choice follows.
        test = self.text.let(f"fcmp o{word} {kind} {b}, {a}")
        chosen = self._select(test, x.dtype, b, a)
        if any(arg.op == "constant" for arg in x.args):
            return chosen
        test = self.text.let(f"fcmp uno {kind} {b}, {b}")
        return self._select(test, x.dtype, b, chosen)

    def _maximum(self, x: Element, args: list[str]) -> str:
        return self._extreme(x, args, "gt")

    def _minimum(self, x: Element, args: list[str]) -> str:
        return self._extreme(x, args, "lt")

    def _negative(self, x: Element, args: list[str]) -> str:
        kind = vector(x.dtype)
        if x.dtype[0] == "f":
            return self.text.let(f"fneg {kind} {args[0]}")
        return self.text.let(f"sub {kind} zeroinitializer, {args[0]}")

    def _not(self, x: Element, args: list[str]) -> str:
        return self.text.let(f"xor {TRUTHS} {args[0]}, splat (i1 true)")

    def _intrinsic(self, name: str, x: Element, args: Sequence[str]) -> str:
        kind = vector(x.dtype)
        return self.text.call(
            f"llvm.{name}.{suffix(x.dtype)}", kind, *((kind, a) for a in args)
        )

    def _absolute(self, x: Element, args: list[str]) -> str:
        if x.dtype[0] == "f":
            return self._intrinsic("fabs", x, args)
        return self._select(
            self.text.let(f"icmp slt {vector(x.dtype)} {args[0]}, zeroinitializer"),
            x.dtype,
            self._negative(x, args),
            args[0],
        )

    def _sqrt(self, x: Element, args: list[str]) -> str:
        return self._intrinsic("sqrt", x, args)

    def _fma(self, x: Element, args: list[str]) -> str:
        return self._intrinsic("fmuladd", x, args)

    def _bits(self, x: Element, args: list[str]) -> str:
        before = vector(x.args[0].dtype)
        return self.text.let(f"bitcast {before} {args[0]} to {vector(x.dtype)}")

    def _cast(self, x: Element, args: list[str]) -> str:
        value, before = args[0], x.args[0].dtype
        if "bfloat16" in (before, x.dtype):  # converted from and to float32 only
            value, before = self._converted(value, before, "float32"), "float32"
        return self._converted(value, before, x.dtype)

    def _converted(self, name: str, before: str, after: str) -> str:
        kind, value = vector(after), f"{vector(before)} {name}"
        if before == after:
            return name
        if after == "bool":
            word = "fcmp une" if before[0] == "f" else "icmp ne"
            return self.text.let(f"{word} {value}, zeroinitializer")
        if before[0] == "f" and after[0] == "i":
            rounds = f"llvm.fptosi.sat.{suffix(after)}.{suffix(before)}"
            found = self.text.call(rounds, kind, (vector(before), name))
            number = self.text.let(f"fcmp ord {value}, {name}")
            # NaN is the lowest number, as NumPy has it here: a label 0 would be believed.
            lowest = f"splat ({DTYPES[after]} {-(1 << 8 * _BYTES[after] - 1)})"
            return self._select(number, after, found, lowest)
        if before == "bfloat16":
            word = "fpext"
        elif before[0] == "f":
            word = "fpext" if after == "float64" else "fptrunc"
        elif after[0] == "f":
            word = "uitofp" if before == "bool" else "sitofp"
        else:
            word = "zext" if before == "bool" else "sext" if after == "int64" else "trunc"
        return self.text.let(f"{word} {value} to {kind}")
