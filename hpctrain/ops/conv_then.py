"""Convolutions, and the gradient of the input, that go on element by element.

No one applies these rows: the pass ``finish`` puts them in the place of a convolution and its
only reader. So they have no gradient.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hpctrain import backend
from hpctrain.autograd import Primitive, Spec, primitive, register
from hpctrain.ops.dnnl_row import Products
from hpctrain.ops.dnnl_then import After, addends, possible
from hpctrain.ops.rules import need

__all__ = ["then"]


class _Then:
    """The columns of a row that does another one and then some steps.

    Parameters
    ----------
    name : str
        Of the other one.
    kernel, scratch : callable
        The other one's reference.
    """

    def __init__(self, name: str, infer: Any, kernel: Any, scratch: Any) -> None:
        self.name, self._infer = name, infer
        self._kernel, self._scratch = kernel, scratch

    def infer(self, specs: Sequence[Spec], *, after: After, **attrs: Any) -> list[Spec]:
        first = len(specs) - addends(after)
        (out,) = self._infer(specs[:first], **attrs)
        for spec in specs[first:]:
            fits = spec.dtype == out.dtype and spec.shape in (out.shape, out.shape[-1:])
            need(fits, self.name, specs, f"to add {out}, or one number for each channel")
        return [out]

    def scratch(self, specs: Sequence[Spec], *, after: After, **attrs: Any) -> list[Spec]:
        first, (out,) = len(specs) - addends(after), self.infer(specs, after=after, **attrs)
        found, rest = list(self._scratch(specs[:first], **attrs)), list(specs[first:])
        for name, given in after:
            found += _spare(name, [out, *_taken(name, rest)], given)
        return found

    def kernel(
        self, xp: Any, ins: Any, outs: Any, scratch: Any, *, after: After, **attrs: Any
    ) -> None:
        first, spare = len(ins) - addends(after), list(scratch)
        own = self._scratch([Spec.of(a) for a in ins[:first]], **attrs)
        self._kernel(xp, ins[:first], outs, _cut(spare, own), **attrs)
        rest = list(ins[first:])
        for name, given in after:
            args = [outs[0], *_taken(name, rest)]
            wanted = _spare(name, [Spec.of(a) for a in args], given)
            primitive(name).kernel(xp, args, outs, _cut(spare, wanted), **dict(given))


def _taken(name: str, rest: list[Any]) -> list[Any]:
    """Take what a step reads beside what the step before has made."""
    return [rest.pop(0)] if name == "add" else []


def _spare(name: str, specs: Sequence[Spec], given: Any) -> Sequence[Spec]:
    """Return the scratch of a step."""
    scratch = primitive(name).scratch
    return scratch(specs, **dict(given)) if scratch else ()


def _cut(spare: list[Any], wanted: Sequence[Spec]) -> list[Any]:
    """Take as many arrays as are wanted from the front of ``spare``."""
    taken = spare[: len(wanted)]
    del spare[: len(wanted)]
    return taken


def then(name: str, make: Any, infer: Any, kernel: Any, scratch: Any) -> Callable[..., Any]:
    """Register the row ``name`` + ``_then``; return the column ``then`` of the row ``name``."""
    way = _Then(name, infer, kernel, scratch)
    two = Products(way.infer, make, way.kernel, way.scratch)
    columns = {k: v for k, v in two.columns.items() if k != "narrow"}
    row = register(
        Primitive(f"{name}_then", "window", way.infer, two.kernel, any_strides=True, **columns)
    )

    def column(specs: Sequence[Spec], after: After, **attrs: Any) -> Primitive | None:
        if not possible(after) or backend.gpu_count():  # a plan does not know where it runs
            return None
        found = two.program(specs, {**attrs, "after": after})
        return None if found is None else row

    return column
