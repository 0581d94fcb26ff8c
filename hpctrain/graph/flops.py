"""How many floating-point operations a node takes, from shapes alone.

A product and the sum that it goes into count as two. Rows that multiply and add are listed by
name; the others cost one for each element, and those that only move elements nothing. It is a
measure of the problem, before fusion, not of what a kernel really executes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.graph.ir import Graph, Node

__all__ = ["flops", "node_flops"]

Specs = Sequence[Spec]
Products = Callable[[Specs, Specs, Mapping[str, Any]], int]


def flops(graph: Graph) -> int:
    """Return the floating-point operations of one run of ``graph``, which is not fused."""
    return sum(node_flops(graph, node) for node in graph.nodes)


def node_flops(graph: Graph, node: Node) -> int:
    """Return the floating-point operations of one node."""
    ins = [graph.specs[v] for v in node.inputs]
    outs = [graph.specs[v] for v in node.outputs]
    attrs = dict(node.attrs)
    if node.row.name in _PRODUCTS:
        return 2 * _PRODUCTS[node.row.name](ins, outs, attrs)
    if node.row.kind in ("movement", "gather"):
        return 0
    if node.row.kind == "window":  # pooling: each window once
        return min(s.size for s in (*ins, *outs)) * math.prod(attrs["kernel"])
    if node.row.kind in ("reduce", "normalize"):
        return sum(s.size for s in ins)
    return sum(s.size for s in outs)


def _matmul(ins: Specs, outs: Specs, attrs: Mapping[str, Any]) -> int:
    return outs[0].size * ins[0].shape[-2 if attrs.get("transpose_a") else -1]


def _per_weight(x: Spec, weight: Spec) -> int:
    """Return the products of ``x`` with all weights of its channel."""
    return x.size * math.prod(weight.shape[1:])


def _attention(count: int, first: int) -> Products:
    """Make the rule of ``count`` products of queries and keys; q is input ``first``."""

    def rule(ins: Specs, outs: Specs, attrs: Mapping[str, Any]) -> int:
        q, k = ins[first : first + 2]
        return count * q.size * k.shape[2] // (2 if attrs["causal"] else 1)

    return rule


def _self_attention(count: int, first: int) -> Products:
    def rule(ins: Specs, outs: Specs, attrs: Mapping[str, Any]) -> int:
        qkv = ins[first]
        return count * (qkv.size // 3) * qkv.shape[1] // (2 if attrs["causal"] else 1)

    return rule


def _recurrent(*weights: int) -> Products:
    """Make the rule of a loop over the steps of the first input, with these weights."""

    def rule(ins: Specs, outs: Specs, attrs: Mapping[str, Any]) -> int:
        steps, batch, _ = ins[0].shape
        return steps * batch * sum(ins[w].size for w in weights)

    return rule


# Products of two numbers that are added up; the gradient of attention computes its scores anew.
_PRODUCTS: Mapping[str, Products] = MappingProxyType(
    {
        "matmul": _matmul,
        "dense": lambda ins, outs, attrs: outs[0].size * ins[1].shape[-1],
        "conv": lambda ins, outs, attrs: _per_weight(outs[0], ins[1]),
        "conv_grad_data": lambda ins, outs, attrs: _per_weight(*ins),
        "conv_grad_weight": lambda ins, outs, attrs: _per_weight(ins[1], outs[0]),
        "attention": _attention(2, 0),
        "attention_grad": _attention(5, 1),
        "self_attention": _self_attention(2, 0),
        "self_attention_grad": _self_attention(5, 1),
        "lstm": _recurrent(3, 4),
        "lstm_grad": _recurrent(4),
        "gru": _recurrent(2, 3),
        "gru_grad": _recurrent(3),
    }
)
