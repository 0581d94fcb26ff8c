"""How each operation is carried out by a team: a table of rules, one for each kind of layer.

A rule takes the shares of the inputs and returns those of the outputs. It says which form the
inputs need, by which cut parameters are divided if that is still open, and how the outputs lie.
What has no rule is computed whole, by all ranks alike.

| operation | input | parameters | output |
|---|---|---|---|
| dense, *column* | whole | cut by output | cut along the last axis |
| dense, *row* | cut along the last axis | cut by input | a term |
| convolution | whole | cut by output channel | cut by channel |
| embedding | whole | cut by row | a term |
| attention | cut by head | | cut by head |
| layer normalisation | cut along the sequence | whole | as the input |
| batch normalisation, pooling | cut by channel | cut | as the input |
| cross entropy, argmax | cut by class | | whole |

A dense layer behind one whose output is cut is *row*, any other one *column*: so pairs of them
need one exchange. `hpctrain.nn.divide` overrules that.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hpctrain.autograd import Spec, apply
from hpctrain.graph.ir import Node
from hpctrain.graph.marks import DIVIDE
from hpctrain.ops.cut import Cut
from hpctrain.ops.random import dropout_part
from hpctrain.ops.team_vocab import take_part, team_argmax
from hpctrain.parallel.share_moves import MOVES, reduced, stayed
from hpctrain.parallel.shares import Forms, Share

__all__ = ["RULES", "Rule", "everywhere"]

Rule = Callable[[Forms, Node, Sequence[Share], Sequence[Spec]], Sequence[Share]]


def everywhere(
    forms: Forms, node: Node, ins: Sequence[Share], specs: Sequence[Spec]
) -> Sequence[Share]:
    """Compute it whole on every rank."""
    made = forms.apply(node.row, [forms.whole(s) for s in ins], dict(node.attrs))
    return forms.made(made, specs, [None] * len(specs))


def _dense(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    x, weight, *bias = ins
    forms.total(x)
    how, known = node.mark(DIVIDE), forms.cuts.get(weight.leaf, weight.cut)
    wanted = _columns(forms, how, weight, known)
    if _is_row(forms, how, x, weight, known):
        return _row(forms, node, (x, weight, bias, known), specs)
    if wanted is not None:
        inputs = [forms.terms(x), *(forms.part(s, wanted) for s in (weight, *bias))]
        made = forms.apply(node.row, inputs, dict(node.attrs))
        return forms.made(made, specs, [wanted.along(specs[0].ndim - 1)], forms.place)
    if x.cut is not None and x.cut.axis != x.last:
        inputs = [x.tensor, *(forms.terms(s) for s in (weight, *bias))]
        return forms.made(forms.apply(node.row, inputs, {}), specs, [x.cut], x.origin)
    return everywhere(forms, node, ins, specs)


def _is_row(forms: Forms, how: Any, x: Share, weight: Share, known: Cut | None) -> bool:
    if forms.decided(weight):
        return known is not None and known.axis == 1
    fits = forms.fits(x.cut or Cut(0), x.spec.shape[-1])
    return weight.leaf >= 0 and fits and (how == "row" or (how is None and x.cut_at(x.last)))


def _columns(forms: Forms, how: Any, weight: Share, known: Cut | None) -> Cut | None:
    """Return how to cut a weight by its output, None for not at all."""
    if forms.decided(weight):
        return known if known is not None and known.axis == 0 else None
    cut = Cut(0, *forms.patterns.get(forms.place, (1, 1)))
    fits = forms.fits(cut, weight.spec.shape[0])
    return cut if weight.leaf >= 0 and fits and how in (None, "column") else None


def _row(forms: Forms, node: Node, given: Any, specs: Any) -> Any:
    x, weight, bias, known = given
    cut = (known or (x.cut if x.cut_at(x.last) else Cut(0))).along(x.last)
    inputs = [forms.part(x, cut), forms.part(weight, cut.along(1))]
    (y,) = forms.made(forms.apply(node.row, inputs, {}), specs, [None])
    y.term = True
    for share in bias:
        forms.total(y)
        whole = forms.whole(share) if y.cut is None else forms.terms(share)
        y.tensor = apply("add", y.tensor, whole)
    return [y]


def _conv(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    x, weight, *bias = ins
    attrs, known = dict(node.attrs), forms.cuts.get(weight.leaf, weight.cut)
    cut = _columns(forms, node.mark(DIVIDE), weight, known)
    groups, channels = attrs["groups"], x.spec.shape[-1]
    if cut is None or (groups > 1 and (groups != channels or weight.spec.shape[0] != groups)):
        return everywhere(forms, node, ins, specs)
    if groups > 1:  # each channel for itself
        lie = cut.along(x.last)
        attrs["groups"] = lie.length(groups, forms.team)
        inputs = [forms.part(x, lie)]
    else:
        inputs = [forms.terms(x)]
    inputs += [forms.part(s, cut) for s in (weight, *bias)]
    made = forms.apply(node.row, inputs, attrs)
    return forms.made(made, specs, [cut.along(specs[0].ndim - 1)], forms.place)


def _take(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    table, ids = ins
    rows, known = table.spec.shape[0], forms.cuts.get(table.leaf, table.cut)
    cut = known if forms.decided(table) else Cut(0)
    by_row = dict(node.attrs)["axis"] == 0 and table.leaf >= 0 and forms.fits(Cut(0), rows)
    if not by_row or cut != Cut(0) or node.mark(DIVIDE) == "whole":
        return everywhere(forms, node, ins, specs)
    part = forms.part(table, cut)
    made = take_part(part, forms.whole(ids), cut.span(rows, forms.team)[0], rows)
    (y,) = forms.made([made], specs, [None])
    y.term = True
    return [y]


def _self_attention(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    (qkv,), attrs = ins, dict(node.attrs)
    heads, width = attrs["heads"], specs[0].shape[-1] // attrs["heads"]
    forms.total(qkv)
    if qkv.cut_at(2) and heads >= forms.team.size:
        if (qkv.cut.blocks, qkv.cut.unit) != (3, width):
            forms.wish(qkv, 3, width)
        tensor = forms.part(qkv, Cut(2, 3, width))
        attrs["heads"] = Cut(0).length(heads, forms.team)
        made = forms.apply(node.row, [tensor], attrs)
        return forms.made(made, specs, [Cut(2, 1, width), Cut(1)], qkv.origin)
    if qkv.cut_at(0):
        return stayed(forms, node, ins, specs)
    return everywhere(forms, node, ins, specs)


def _attention(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    cut = next((s.cut for s in ins if s.cut is not None and s.cut.axis < 2), None)
    if cut is None:
        return everywhere(forms, node, ins, specs)
    made = forms.apply(node.row, [forms.part(s, cut) for s in ins], dict(node.attrs))
    lie = [cut.along(2 * cut.axis), cut]  # the first output has its heads behind its queries
    return forms.made(made, specs, lie, ins[0].origin)


def _rows_normalised(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    x, *vectors = ins
    forms.total(x)
    if x.cut is None or x.cut.axis == x.last:
        return everywhere(forms, node, ins, specs)
    inputs = [x.tensor, *(forms.terms(v) for v in vectors)]
    made = forms.apply(node.row, inputs, dict(node.attrs))
    return forms.made(made, specs, [x.cut] * len(specs), x.origin)


def _channels_normalised(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    x, *vectors = ins
    forms.total(x)
    if not x.cut_at(x.last):
        return everywhere(forms, node, ins, specs)
    inputs = [x.tensor, *(forms.part(v, x.cut.along(0)) for v in vectors)]
    made = forms.apply(node.row, inputs, dict(node.attrs))
    lie = [x.cut.along(s.ndim - 1) if s.ndim else None for s in specs]
    return forms.made(made, specs, lie, x.origin)


def _pool(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    (x,) = ins
    forms.total(x)
    return (stayed if x.cut_at(x.last) else everywhere)(forms, node, ins, specs)


def _by_row(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    """Of softmax and its like, which work along one axis."""
    (x,) = ins
    forms.total(x)
    here = x.cut is not None and x.cut.axis != dict(node.attrs)["axis"]
    return (stayed if here else everywhere)(forms, node, ins, specs)


def _cross_entropy(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    logits, labels = ins
    forms.total(logits)
    if logits.cut is None:
        return everywhere(forms, node, ins, specs)
    if logits.cut.axis != logits.last:
        inputs = [logits.tensor, forms.part(labels, logits.cut)]
        made = forms.apply(node.row, inputs, {})
        return forms.made(made, specs, [logits.cut] * len(specs))
    length = logits.spec.shape[-1]
    tensor = forms.part(logits, Cut(logits.last))
    attrs = {"team": forms.team, "length": length}
    made = apply("team_cross_entropy", tensor, forms.whole(labels), **attrs)
    return forms.made(made, specs, [None] * len(specs))


def _argmax(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    (x,) = ins
    forms.total(x)
    if not (x.cut_at(x.last) and dict(node.attrs)["axis"] == x.last):
        return reduced(forms, node, ins, specs)
    tensor, length = forms.part(x, Cut(x.last)), x.spec.shape[-1]
    return forms.made([team_argmax(tensor, forms.team, length)], specs, [None])


def _dropout(forms: Forms, node: Node, ins: Any, specs: Any) -> Any:
    x, stream = ins
    forms.total(x)
    attrs = dict(node.attrs)
    if x.cut is None or x.cut.axis == attrs["batch_axis"]:
        return everywhere(forms, node, ins, specs)
    length = x.spec.shape[x.cut.axis]
    more = {"team": forms.team, "cut": x.cut, "length": length}
    made = dropout_part(x.tensor, forms.whole(stream), **attrs, **more)
    return forms.made(made, specs, [x.cut] * 2, x.origin)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "dense": _dense, "conv": _conv, "take": _take,
        "self_attention": _self_attention, "attention": _attention,
        "layer_norm": _rows_normalised, "batch_norm": _channels_normalised,
        "sync_batch_norm": _channels_normalised, "rescale": _channels_normalised,
        "max_pool": _pool, "avg_pool": _pool, "softmax": _by_row, "log_softmax": _by_row,
        "softmax_cross_entropy": _cross_entropy, "argmax": _argmax, "dropout": _dropout,
        **MOVES,
    }
)  # fmt: skip
