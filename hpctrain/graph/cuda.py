"""A fused operation as one CuPy kernel, generated as text.

CuPy broadcasts and reads any strides, so the text holds only the formula. Sums are made by
CuPy from the summed values, which the kernel writes out.
"""

import math
from collections.abc import Sequence
from typing import Any

from hpctrain.autograd.element import Element, in_order
from hpctrain.graph.work import Fused

__all__ = ["cuda_text", "run_cuda"]

_TYPES = {
    "float32": "float", "float64": "double", "int32": "int", "int64": "long long",
    "bool": "bool",
}  # fmt: skip
_INFIX = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "less": "<",
    "less_equal": "<=", "equal": "==", "not_equal": "!=", "and": "&&", "or": "||",
}  # fmt: skip
_CALLS = ("exp", "expm1", "log", "log1p", "tanh", "erf", "sqrt")


def cuda_text(work: Fused) -> tuple[str, str, str]:
    """Return input parameters, output parameters and statements of an ``ElementwiseKernel``."""
    taken = ", ".join(f"{a.spec.dtype.name} a{i}" for i, a in enumerate(work.inputs))
    given = ", ".join(f"{r.element.dtype} y{i}" for i, r in enumerate(work.results))
    names: dict[int, str] = {}
    known: dict[str, str] = {}
    lines = []
    for x in in_order(r.element for r in work.results):
        text = _expression(x, [names[id(a)] for a in x.args])
        if x.op in ("input", "constant"):
            names[id(x)] = text
            continue
        key = f"{_TYPES[x.dtype]} {text}"
        if key not in known:
            known[key] = f"t{len(known)}"
            lines.append(f"const {_TYPES[x.dtype]} {known[key]} = {text};")
        names[id(x)] = known[key]
    lines += [f"y{i} = {names[id(r.element)]};" for i, r in enumerate(work.results)]
    return taken, given, "\n".join(lines)


def _expression(x: Element, args: Sequence[str]) -> str:
    if x.op == "input":
        return f"a{int(x.value)}"
    if x.op == "constant":
        return _literal(x.value, x.dtype)
    if x.op in _INFIX:
        return f"{args[0]} {_INFIX[x.op]} {args[1]}"
    if x.op in _CALLS:
        return f"{x.op}({args[0]})"
    if x.op in ("maximum", "minimum"):
        a, b = args
        sign = ">" if x.op == "maximum" else "<"
        return f"({a} {sign} {b} || {a} != {a}) ? {a} : {b}"
    forms = {
        "where": "{0} ? {1} : {2}",
        "negative": "-{0}",
        "absolute": "abs({0})",
        "not": "!{0}",
        "cast": f"({_TYPES[x.dtype]})({{0}})",
    }
    return forms[x.op].format(*args)


def _literal(value: float, dtype: str) -> str:
    if dtype == "bool":
        return str(bool(value)).lower()
    if dtype[0] == "i":
        return f"({_TYPES[dtype]})({int(value)})"
    if math.isfinite(value):
        return f"({_TYPES[dtype]})({float(value)!r})"
    sign = "-" if value < 0 else ""
    return f"({_TYPES[dtype]})({sign}{'0.0' if math.isnan(value) else '1.0'} / 0.0)"


def run_cuda(work: Fused, xp: Any, ins: Sequence[Any], outs: Sequence[Any]) -> None:
    """Compute ``outs`` from ``ins`` on a GPU; ``xp`` is CuPy, which keeps compiled kernels."""
    taken, given, text = cuda_text(work)
    kernel = xp.ElementwiseKernel(taken, given, text, f"fused_{work.digest()}")
    seen = [a.seen(x) for a, x in zip(work.inputs, ins, strict=True)]
    targets = [
        out if r.axes is None else xp.empty(work.shape, r.spec.dtype)
        for r, out in zip(work.results, outs, strict=True)
    ]
    kernel(*seen, *targets, **({} if seen else {"size": targets[0].size}))
    for r, out, values in zip(work.results, outs, targets, strict=True):
        if r.axes is not None:
            xp.sum(values, axis=r.axes, out=out.reshape(r.kept(work.shape)))
            if r.factor != 1.0:
                out *= r.factor
