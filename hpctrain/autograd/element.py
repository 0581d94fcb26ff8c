"""Formulas: what an element-wise operation computes for one element, as data.

A row of the table may carry a formula, a function from elements to an element written with
the operators and functions below. Called on `Element`s it yields an expression, from which a
compiler makes one loop out of many operations. The words and dtypes are NumPy's: operands of
two dtypes are promoted, plain numbers take the dtype of what they stand beside.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "FOLDS", "Element", "absolute", "cast", "constant", "erf", "exp", "expm1", "in_order",
    "isfinite", "largest", "log", "log1p", "logical_and", "logical_not", "logical_or",
    "maximum", "minimum", "sigmoid", "sign", "source", "sqrt", "tanh", "total", "where",
]  # fmt: skip

FOLDS = ("total", "largest")  # of a row: a formula as a whole only, not part of another


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """An expression.

    Attributes
    ----------
    op : str
        ``input``, ``constant``, or what is done to ``args``.
    args : tuple of Element
    dtype : str
        Of the result; a comparison's is ``bool``.
    value : number
        Of a constant; of an input its position.
    """

    op: str
    args: tuple["Element", ...]
    dtype: str
    value: float = 0

    def __add__(self, other: Any) -> "Element":
        return _arithmetic("add", self, other, "or")

    __radd__ = __add__

    def __mul__(self, other: Any) -> "Element":
        return _arithmetic("multiply", self, other, "and")

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> "Element":
        return _arithmetic("subtract", self, other)

    def __rsub__(self, other: Any) -> "Element":
        return constant(other, self) - self

    def __truediv__(self, other: Any) -> "Element":
        a, b = _together(self, other)
        if a.dtype[0] != "f":
            a, b = cast(a, "float64"), cast(b, "float64")
        return _arithmetic("divide", a, b)

    def __rtruediv__(self, other: Any) -> "Element":
        return constant(other, self) / self

    def __neg__(self) -> "Element":
        return Element("negative", (self,), self.dtype)

    def __lt__(self, other: Any) -> "Element":
        return _compare("less", self, other)

    def __le__(self, other: Any) -> "Element":
        return _compare("less_equal", self, other)

    def __gt__(self, other: Any) -> "Element":
        return _compare("less", other, self)

    def __ge__(self, other: Any) -> "Element":
        return _compare("less_equal", other, self)

    def equals(self, other: Any) -> "Element":
        """Return where both are equal."""
        return _compare("equal", self, other)

    def differs(self, other: Any) -> "Element":
        """Return where both are not equal."""
        return _compare("not_equal", self, other)


def in_order(roots: Iterable[Element]) -> list[Element]:
    """Return everything that ``roots`` are made of, each after its arguments."""
    found: dict[int, Element] = {}
    open_: list[tuple[Element, bool]] = [(x, False) for x in roots][::-1]
    while open_:
        x, ready = open_.pop()
        if ready:
            found.setdefault(id(x), x)
        elif id(x) not in found:
            open_.append((x, True))
            open_.extend((a, False) for a in reversed(x.args))
    return list(found.values())


def source(position: int, dtype: str) -> Element:
    """Return the input at ``position``."""
    return Element("input", (), dtype, position)


def constant(value: float, like: Element) -> Element:
    """Return a number in the dtype of ``like``; a fraction beside whole numbers is float32."""
    fraction = isinstance(value, float) and like.dtype[0] != "f"
    whole = not isinstance(value, bool) and like.dtype == "bool"
    return Element(
        "constant", (), "float32" if fraction else "int64" if whole else like.dtype, value
    )


def _together(a: Any, b: Any) -> tuple[Element, Element]:
    """Promote two operands, of which at least one is an element, to one dtype."""
    if not isinstance(a, Element):
        a = constant(a, b)
    if not isinstance(b, Element):
        b = constant(b, a)
    dtype = a.dtype if a.dtype == b.dtype else np.promote_types(a.dtype, b.dtype).name
    return cast(a, dtype), cast(b, dtype)


def _arithmetic(op: str, a: Any, b: Any, of_truths: str = "") -> Element:
    a, b = _together(a, b)
    return Element(of_truths if a.dtype == "bool" else op, (a, b), a.dtype)


def _compare(op: str, a: Any, b: Any) -> Element:
    return Element(op, _together(a, b), "bool")


def maximum(a: Any, b: Any) -> Element:
    """Return the larger; NaN if one is NaN."""
    return _arithmetic("maximum", a, b, "or")


def minimum(a: Any, b: Any) -> Element:
    """Return the smaller; NaN if one is NaN."""
    return _arithmetic("minimum", a, b, "and")


def where(condition: Element, a: Any, b: Any) -> Element:
    """Return ``a`` where ``condition`` holds, else ``b``; not both plain numbers."""
    a, b = _together(a, b)
    return Element("where", (condition, a, b), a.dtype)


def cast(x: Element, dtype: str) -> Element:
    """Return ``x`` converted to ``dtype``."""
    if x.dtype == dtype:
        return x
    if x.op == "constant":
        number = np.dtype(dtype).type(x.value).item()
        return Element("constant", (), dtype, number)
    return Element("cast", (x,), dtype)


def _truth(x: Element) -> Element:
    return cast(x, "bool")


def logical_and(a: Element, b: Element) -> Element:
    """Return where both are not 0."""
    return Element("and", (_truth(a), _truth(b)), "bool")


def logical_or(a: Element, b: Element) -> Element:
    """Return where one is not 0."""
    return Element("or", (_truth(a), _truth(b)), "bool")


def logical_not(x: Element) -> Element:
    """Return where ``x`` is 0."""
    return Element("not", (_truth(x),), "bool")


def absolute(x: Element) -> Element:
    """Return the absolute value."""
    return Element("absolute", (x,), x.dtype)


def sign(x: Element) -> Element:
    """Return -1, 0 or 1; NaN of NaN."""
    return where(x > 0, 1, where(x < 0, -1, x))


def isfinite(x: Element) -> Element:
    """Return where ``x`` is neither infinite nor NaN."""
    if x.dtype[0] != "f":
        return x.equals(x)
    return absolute(x) < float("inf")


def sqrt(x: Element) -> Element:
    """Return the square root."""
    return Element("sqrt", (x,), x.dtype)


def exp(x: Element) -> Element:
    """Return the exponential."""
    return Element("exp", (x,), x.dtype)


def expm1(x: Element) -> Element:
    """Return ``exp(x) - 1``, exact for small ``x``."""
    return Element("expm1", (x,), x.dtype)


def log(x: Element) -> Element:
    """Return the natural logarithm."""
    return Element("log", (x,), x.dtype)


def log1p(x: Element) -> Element:
    """Return ``log(1 + x)``, exact for small ``x``."""
    return Element("log1p", (x,), x.dtype)


def tanh(x: Element) -> Element:
    """Return the hyperbolic tangent."""
    return Element("tanh", (x,), x.dtype)


def erf(x: Element) -> Element:
    """Return the error function."""
    return Element("erf", (x,), x.dtype)


def sigmoid(x: Element) -> Element:
    """Return ``1 / (1 + exp(-x))``, exact also where it is tiny."""
    e = exp(-absolute(x))
    return where(x < 0, e, 1.0) / (e + 1.0)


def total(x: Element) -> Element:
    """Return the sum along the innermost axis of a loop."""
    return Element("total", (x,), x.dtype)


def largest(x: Element) -> Element:
    """Return the largest along the innermost axis of a loop; NaN never is."""
    return Element("largest", (x,), x.dtype)
