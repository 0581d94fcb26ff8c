"""Rules for operations that keep elements where they are, move them, or sum them.

See `hpctrain.parallel.share_rules`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.graph.ir import Node
from hpctrain.ops.cut import Cut
from hpctrain.parallel.shares import Forms, Share

__all__ = ["MOVES", "elementwise", "reduced", "stayed"]


def _everywhere(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    made = forms.apply(node.row, [forms.whole(s) for s in ins], dict(node.attrs))
    return forms.made(made, specs, [None] * len(specs))


def stayed(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    """Apply it to this rank's part alone; the outputs are cut like the input."""
    (x,) = ins
    made = forms.apply(node.row, [x.tensor], dict(node.attrs))
    return forms.made(made, specs, [x.cut] * len(specs), x.origin)


def elementwise(
    forms: Forms, node: Node, ins: Sequence[Share], specs: Sequence[Spec]
) -> Sequence[Share]:
    """Bring all inputs into the cut of one of them, the first of the most elements."""
    shape = specs[0].shape
    leading = _leading(forms, ins, shape)
    if leading is None:
        return _everywhere(forms, node, ins, specs)
    assert leading.cut is not None, "what leads is cut"
    cut = leading.cut.along(leading.cut.axis + len(shape) - leading.spec.ndim)
    tensors = [_aligned(forms, share, cut, shape) for share in ins]
    made = forms.apply(node.row, tensors, dict(node.attrs))
    return list(forms.made(made, specs, [cut] * len(specs), leading.origin))


def _leading(forms: Forms, ins: Sequence[Share], shape: tuple[int, ...]) -> Share | None:
    """Return the input by whose cut to go, if any is cut where the outputs have that axis."""
    order = sorted(ins, key=lambda share: -share.spec.size)
    for _ in range(2):
        for share in order:
            if share.cut is None:
                continue
            at = share.cut.axis + len(shape) - share.spec.ndim
            if share.spec.shape[share.cut.axis] == shape[at]:
                return share
        for share in order:  # a sum may come cut, too
            forms.total(share)
    return None


def _aligned(forms: Forms, share: Share, cut: Cut, shape: tuple[int, ...]) -> Any:
    axis = cut.axis - len(shape) + share.spec.ndim
    if axis < 0 or share.spec.shape[axis] != shape[cut.axis]:
        return forms.terms(share)  # broadcast along the cut
    return forms.part(share, cut.along(axis))


def reduced(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    """Reduce axes that are not cut; a sum over the cut one is a term."""
    (x,), attrs = ins, dict(node.attrs)
    forms.total(x)
    axes = attrs["axis"] if isinstance(attrs["axis"], tuple) else (attrs["axis"],)
    if x.cut is None:
        return _everywhere(forms, node, ins, specs)
    if x.cut.axis in axes:
        return _summed(forms, node, x, specs)
    gone = 0 if attrs.get("keepdims") else sum(a < x.cut.axis for a in axes)
    made = forms.apply(node.row, [x.tensor], attrs)
    return forms.made(made, specs, [x.cut.along(x.cut.axis - gone)] * len(specs), x.origin)


def _summed(forms: Forms, node: Node, x: Share, specs: Any) -> Any:
    total = node.row.total
    if total is None or total(x.spec, **dict(node.attrs))[1] != 1:
        return _everywhere(forms, node, [x], specs)
    made = forms.apply(node.row, [x.tensor], dict(node.attrs))
    (y,) = forms.made(made, specs, [None])
    y.term = True
    return [y]


def _reshape(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    (x,) = ins
    forms.total(x)
    if x.cut is None:
        return _everywhere(forms, node, ins, specs)
    to = specs[0].shape
    cut = _through(x.spec.shape, x.cut, to)
    if cut is None:
        coarser = _coarser(x.spec.shape, x.cut, to, forms.team.size)
        if coarser is not None:
            forms.wish(x, x.cut.blocks, coarser)
        return _everywhere(forms, node, ins, specs)
    made = forms.apply(node.row, [x.tensor], {"shape": cut.shape(to, forms.team)})
    return forms.made(made, specs, [cut], x.origin)


def _through(shape: tuple[int, ...], cut: Cut, to: tuple[int, ...]) -> Cut | None:
    """Return how the same elements are cut in another shape; None if it cannot be said.

    Examples
    --------
    >>> _through((2, 3, 4), Cut(2), (2, 12))
    Cut(axis=1, blocks=3, unit=1)
    >>> _through((2, 12), Cut(1, 1, 4), (2, 3, 4))
    Cut(axis=1, blocks=1, unit=1)
    """
    units = cut.units(shape[cut.axis])
    before = math.prod(shape[: cut.axis]) * cut.blocks
    for axis in reversed(range(len(to))):
        ahead = math.prod(to[:axis])
        if ahead and before % ahead == 0 and (ahead * to[axis]) % (before * units) == 0:
            blocks = before // ahead
            return Cut(axis, blocks, to[axis] // (blocks * units))
    return None


def _coarser(shape: tuple[int, ...], cut: Cut, to: tuple[int, ...], ranks: int) -> int | None:
    """Return the least unit with which a cut can be kept in another shape."""
    whole = shape[cut.axis] // cut.blocks
    for unit in range(cut.unit, whole // ranks + 1):
        fine = whole % unit == 0 and _through(shape, Cut(cut.axis, cut.blocks, unit), to)
        if fine:
            return unit
    return None


def _transpose(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    (x,), attrs = ins, dict(node.attrs)
    forms.total(x)
    if x.cut is None:
        return _everywhere(forms, node, ins, specs)
    cut = x.cut.along(attrs["axes"].index(x.cut.axis))
    return forms.made(forms.apply(node.row, [x.tensor], attrs), specs, [cut], x.origin)


def _broadcast(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    (x,), to = ins, specs[0].shape
    forms.total(x)
    if x.cut is None:
        return _everywhere(forms, node, ins, specs)
    cut = x.cut.along(x.cut.axis + len(to) - x.spec.ndim)
    made = forms.apply(node.row, [x.tensor], {"shape": cut.shape(to, forms.team)})
    return forms.made(made, specs, [cut], x.origin)


def _slice(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    (x,) = ins
    if x.tensor is not None:
        forms.total(x)
    if x.cut is None:
        return _everywhere(forms, node, ins, specs)
    key, axis = list(dict(node.attrs)["key"]), x.cut.axis
    length = x.spec.shape[axis]
    if isinstance(key[axis], int) or tuple(range(length)[slice(*key[axis])]) != tuple(
        range(length)
    ):
        return _everywhere(forms, node, ins, specs)
    key[axis] = (0, x.cut.length(length, forms.team), 1)
    gone = sum(isinstance(k, int) for k in key[:axis])
    made = forms.apply(node.row, [x.tensor], {"key": tuple(key)})
    return forms.made(made, specs, [x.cut.along(axis - gone)], x.origin)


def _concat(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    attrs = dict(node.attrs)
    for share in ins:
        forms.total(share)
    cut = next((s.cut for s in ins if s.cut is not None), None)
    if cut is None or cut.axis == attrs["axis"]:
        return _everywhere(forms, node, ins, specs)
    made = forms.apply(node.row, [forms.part(s, cut) for s in ins], attrs)
    return forms.made(made, specs, [cut], ins[0].origin)


def _off(places: Callable[[Mapping[str, Any]], Sequence[int]]) -> Any:
    """Make the rule of an operation that changes nothing along axes but ``places``."""

    def rule(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
        (x,) = ins
        forms.total(x)
        if x.cut is None or x.cut.axis in places(dict(node.attrs)):
            return _everywhere(forms, node, ins, specs)
        return stayed(forms, node, ins, specs)

    return rule


MOVES: Mapping[str, Any] = MappingProxyType(
    {
        "sum": reduced, "mean": reduced, "max": reduced, "min": reduced, "logsumexp": reduced,
        "reshape": _reshape, "transpose": _transpose, "broadcast_to": _broadcast,
        "slice": _slice, "concat": _concat,
        "flip": _off(lambda attrs: attrs["axis"]),
        "pad": _off(lambda attrs: [a for a, w in enumerate(attrs["widths"]) if any(w)]),
    }
)  # fmt: skip
