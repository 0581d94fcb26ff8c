"""LLVM text of the codecs' inner loops, for those who can compile it.

NumPy takes ten passes over a block where one would do, and its conversion to half precision
is not vectorised.  These loops do all at once, 16 values at a time; what is left over at the
end, up to 15 values, goes through NumPy, and so does everything where nothing is compiled.
Both give the same bits.

This package compiles nothing itself.  It is given a *compiler*: a function from the text of a
module, which defines ``void kernel(ptr addresses, ptr count, ptr settings)``, to a function of
these three addresses, which lives as long as it is held.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Compiler = Callable[[str], Callable[[Any, Any, Any], None]]

WIDTH = 16
"""Values that a loop takes at once."""


class Kernel:
    """A compiled loop over some arrays, or what stands in for it: a loop over none.

    Parameters
    ----------
    compiler : Compiler or None
    text : str
        One of those below.
    settings : float
        What the text reads as float32.

    Notes
    -----
    One thread at a time: the kernel owns the list of its arguments.
    """

    __slots__ = ("_addresses", "_arguments", "_count", "_function", "_settings")

    def __init__(self, compiler: Compiler | None, text: str, *settings: float) -> None:
        self._function = None if compiler is None else compiler(text)
        self._addresses = np.zeros(4, np.uintp)
        self._count = np.zeros(1, np.int64)
        self._settings = np.array(settings, np.float32)
        owned = (self._addresses, self._count, self._settings)
        self._arguments = tuple(array.ctypes.data for array in owned)

    def settle(self, *settings: float) -> None:
        """Go on with other settings."""
        self._settings[:] = settings

    def __call__(self, count: int, *arrays: np.ndarray[Any, np.dtype[Any]]) -> int:
        """Run over ``count`` values; return how many of them are done, the first ones.

        The arrays must be contiguous and as long as the text needs for ``count`` values.
        """
        whole = count - count % WIDTH
        if self._function is None or not whole:
            return 0
        for i, array in enumerate(arrays):
            self._addresses[i] = array.ctypes.data
        self._count[0] = whole
        self._function(*self._arguments)
        return whole


def _vector(kind: str, *values: object) -> str:
    """Return the constant of 16 lanes that repeats ``values``."""
    lanes = ", ".join(f"{kind} {values[i % len(values)]}" for i in range(WIDTH))
    return f"<{lanes}>"


def _i32(*values: int) -> str:
    return _vector("i32", *values)


def _loop(sizes: tuple[int, ...], body: str, settings: str = "") -> str:
    """Return a module whose loop runs ``body``; ``%p0``... point to its 16 values.

    ``sizes`` are the bits of one value in each array.
    """
    heads = [
        f"  %h{k} = getelementptr i8, ptr %addresses, i64 {8 * k}\n"
        f"  %a{k} = load ptr, ptr %h{k}"
        for k in range(len(sizes))
    ]
    places = [
        f"  %o{k} = lshr i64 %i{bits}, 3\n  %p{k} = getelementptr i8, ptr %a{k}, i64 %o{k}"
        for k, bits in enumerate(sizes)
    ]
    offsets = [f"  %i{bits} = mul i64 %i, {bits}" for bits in sorted(set(sizes))]
    return "\n".join(
        [
            "define void @kernel(ptr %addresses, ptr %length, ptr %settings) nounwind {",
            "entry:",
            *heads,
            "  %count = load i64, ptr %length",
            settings.strip("\n"),
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
            *offsets,
            *places,
            body.strip("\n"),
            f"  %next = add i64 %i, {WIDTH}",
            "  %more = icmp slt i64 %next, %count",
            "  br i1 %more, label %loop, label %done",
            "done:",
            "  ret void",
            "}",
            "",
        ]
    )


_STORE = "\n  store <16 x float> %value, ptr %p1, align 1"
_ADD = """
  %before = load <16 x float>, ptr %p1, align 1
  %part = fmul <16 x float> %value, %scale
  %after = fadd <16 x float> %before, %part
  store <16 x float> %after, ptr %p1, align 1"""

# With base = 2^(e + 13) for |x| in [2^e, 2^(e + 1)), e at least -14, the sum |x| + base has its
# last bit where the half has it: the addition rounds, and the low bits are the half's.
_TO_HALF = f"""
  %u = load <16 x i32>, ptr %p0, align 1
  %a = and <16 x i32> %u, {_i32(0x7FFFFFFF)}
  %e = and <16 x i32> %u, {_i32(0x7F800000)}
  %large = icmp ugt <16 x i32> %e, {_i32(113 << 23)}
  %power = select <16 x i1> %large, <16 x i32> %e, <16 x i32> {_i32(113 << 23)}
  %base = add <16 x i32> %power, {_i32(13 << 23)}
  %fa = bitcast <16 x i32> %a to <16 x float>
  %fb = bitcast <16 x i32> %base to <16 x float>
  %fs = fadd <16 x float> %fa, %fb
  %s = bitcast <16 x float> %fs to <16 x i32>
  %high = lshr <16 x i32> %s, {_i32(13)}
  %both = add <16 x i32> %s, %high
  %finite = sub <16 x i32> %both, {_i32(126 << 10)}
  %nan = icmp ugt <16 x i32> %a, {_i32(0x7F800000)}
  %other = select <16 x i1> %nan, <16 x i32> {_i32(0x7E00)}, <16 x i32> {_i32(0x7C00)}
  %over = icmp uge <16 x i32> %a, {_i32((127 + 16) << 23)}
  %half = select <16 x i1> %over, <16 x i32> %other, <16 x i32> %finite
  %top = lshr <16 x i32> %u, {_i32(16)}
  %sign = and <16 x i32> %top, {_i32(0x8000)}
  %low = and <16 x i32> %half, {_i32(0x7FFF)}
  %all = or <16 x i32> %low, %sign
  %out = trunc <16 x i32> %all to <16 x i16>
  store <16 x i16> %out, ptr %p1, align 1
"""

_FROM_HALF = f"""
  %h = load <16 x i16>, ptr %p0, align 1
  %w = zext <16 x i16> %h to <16 x i32>
  %m = and <16 x i32> %w, {_i32(0x7FFF)}
  %shifted = shl <16 x i32> %m, {_i32(13)}
  %normal = add <16 x i32> %shifted, {_i32(112 << 23)}
  %infinite = add <16 x i32> %shifted, {_i32(224 << 23)}
  %whole = uitofp <16 x i32> %m to <16 x float>
  %tiny = fmul <16 x float> %whole, {_vector("float", f"0x{0x3E70000000000000:016X}")}
  %small = bitcast <16 x float> %tiny to <16 x i32>
  %over = icmp uge <16 x i32> %m, {_i32(0x7C00)}
  %under = icmp ult <16 x i32> %m, {_i32(0x0400)}
  %some = select <16 x i1> %over, <16 x i32> %infinite, <16 x i32> %normal
  %bits = select <16 x i1> %under, <16 x i32> %small, <16 x i32> %some
  %top = and <16 x i32> %w, {_i32(0x8000)}
  %sign = shl <16 x i32> %top, {_i32(16)}
  %all = or <16 x i32> %bits, %sign
  %value = bitcast <16 x i32> %all to <16 x float>"""

_TO_BFLOAT = f"""
  %u = load <16 x i32>, ptr %p0, align 1
  %a = and <16 x i32> %u, {_i32(0x7FFFFFFF)}
  %top = lshr <16 x i32> %u, {_i32(16)}
  %odd = and <16 x i32> %top, {_i32(1)}
  %more.odd = add <16 x i32> %u, %odd
  %sum = add <16 x i32> %more.odd, {_i32(0x7FFF)}
  %round = lshr <16 x i32> %sum, {_i32(16)}
  %nan = icmp ugt <16 x i32> %a, {_i32(0x7F800000)}
  %all = select <16 x i1> %nan, <16 x i32> {_i32(0x7FC0)}, <16 x i32> %round
  %out = trunc <16 x i32> %all to <16 x i16>
  store <16 x i16> %out, ptr %p1, align 1
"""

_FROM_BFLOAT = f"""
  %h = load <16 x i16>, ptr %p0, align 1
  %w = zext <16 x i16> %h to <16 x i32>
  %all = shl <16 x i32> %w, {_i32(16)}
  %value = bitcast <16 x i32> %all to <16 x float>"""

_ABOVE, _BELOW = _i32(128, 64, 32, 16), _i32(8, 4, 2, 1)
_ZERO = "zeroinitializer"
_NAN = _vector("float", "0x7FF8000000000000")
_BYTES = ", ".join(f"i32 {i // 4}" for i in range(WIDTH))

_THRESHOLD = f"""
  %t = load float, ptr %settings
  %minus = fneg float %t
  %t1 = insertelement <16 x float> poison, float %t, i32 0
  %plus = shufflevector <16 x float> %t1, <16 x float> poison, <16 x i32> {_ZERO}
  %m1 = insertelement <16 x float> poison, float %minus, i32 0
  %less = shufflevector <16 x float> %m1, <16 x float> poison, <16 x i32> {_ZERO}"""


def _scale(place: int) -> str:
    """Return what reads the setting at ``place`` as a factor of all values."""
    return f"""
  %setting = getelementptr float, ptr %settings, i64 {place}
  %f = load float, ptr %setting
  %f1 = insertelement <16 x float> poison, float %f, i32 0
  %scale = shufflevector <16 x float> %f1, <16 x float> poison, <16 x i32> {_ZERO}"""


_OWED = """
  %v = load <16 x float>, ptr %p0, align 1
  %r = load <16 x float>, ptr %p2, align 1
  %s = fadd <16 x float> %r, %v"""

_CHANGED = """
  %v = load <16 x float>, ptr %p0, align 1
  %r = load <16 x float>, ptr %p2, align 1
  %change = fsub <16 x float> %v, %r
  %s = fdiv <16 x float> %change, %scale"""

_CHOSEN = f"""
  %u = bitcast <16 x float> %s to <16 x i32>
  %e = and <16 x i32> %u, {_i32(0x7F800000)}
  %bad = icmp eq <16 x i32> %e, {_i32(0x7F800000)}
  %up = fcmp oge <16 x float> %s, %plus
  %down = fcmp ole <16 x float> %s, %less
  %some = select <16 x i1> %down, <16 x float> %less, <16 x float> {_ZERO}
  %sent = select <16 x i1> %up, <16 x float> %plus, <16 x float> %some"""

_KEPT = f"""
  %rest = fsub <16 x float> %s, %sent
  %kept = select <16 x i1> %bad, <16 x float> {_ZERO}, <16 x float> %rest
  store <16 x float> %kept, ptr %p2, align 1"""

_MOVED = f"""
  %known = select <16 x i1> %bad, <16 x float> {_NAN}, <16 x float> %sent
  %part = fmul <16 x float> %known, %scale
  %moved = fadd <16 x float> %r, %part
  store <16 x float> %moved, ptr %p2, align 1"""

_PACKED = f"""
  %above = or <16 x i1> %up, %bad
  %below = or <16 x i1> %down, %bad
  %high = select <16 x i1> %above, <16 x i32> {_ABOVE}, <16 x i32> {_ZERO}
  %low = select <16 x i1> %below, <16 x i32> {_BELOW}, <16 x i32> {_ZERO}
  %code = or <16 x i32> %high, %low
  %narrow = trunc <16 x i32> %code to <16 x i8>
  %c0 = bitcast <16 x i8> %narrow to <4 x i32>
  %c0.shifted = lshr <4 x i32> %c0, <i32 16, i32 16, i32 16, i32 16>
  %c1 = or <4 x i32> %c0, %c0.shifted
  %c1.shifted = lshr <4 x i32> %c1, <i32 8, i32 8, i32 8, i32 8>
  %c2 = or <4 x i32> %c1, %c1.shifted
  %out = trunc <4 x i32> %c2 to <4 x i8>
  store <4 x i8> %out, ptr %p1, align 1
"""

_FROM_TWO_BITS = f"""
  %four = load <4 x i8>, ptr %p0, align 1
  %narrow = shufflevector <4 x i8> %four, <4 x i8> poison, <16 x i32> <{_BYTES}>
  %code = zext <16 x i8> %narrow to <16 x i32>
  %high = and <16 x i32> %code, {_ABOVE}
  %low = and <16 x i32> %code, {_BELOW}
  %above = icmp ne <16 x i32> %high, {_ZERO}
  %below = icmp ne <16 x i32> %low, {_ZERO}
  %nan = and <16 x i1> %above, %below
  %some = select <16 x i1> %below, <16 x float> %less, <16 x float> {_ZERO}
  %number = select <16 x i1> %above, <16 x float> %plus, <16 x float> %some
  %value = select <16 x i1> %nan, <16 x float> {_NAN}, <16 x float> %number"""

HALF_ENCODE = _loop((32, 16), _TO_HALF)
HALF_DECODE = _loop((16, 32), _FROM_HALF + _STORE)
HALF_ADD = _loop((16, 32), _FROM_HALF + _ADD, _scale(0))
BFLOAT_ENCODE = _loop((32, 16), _TO_BFLOAT)
BFLOAT_DECODE = _loop((16, 32), _FROM_BFLOAT + _STORE)
BFLOAT_ADD = _loop((16, 32), _FROM_BFLOAT + _ADD, _scale(0))
TWO_BIT_ENCODE = _loop((32, 2, 32), _OWED + _CHOSEN + _KEPT + _PACKED, _THRESHOLD)
TWO_BIT_MOVE = _loop((32, 2, 32), _CHANGED + _CHOSEN + _MOVED + _PACKED, _THRESHOLD + _scale(1))
TWO_BIT_DECODE = _loop((2, 32), _FROM_TWO_BITS + _STORE, _THRESHOLD)
TWO_BIT_ADD = _loop((2, 32), _FROM_TWO_BITS + _ADD, _THRESHOLD + _scale(1))
