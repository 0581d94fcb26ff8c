"""Reverse mode: walk the tape backwards, apply each gradient rule, add up what arrives.

The walk does not know whether it runs eagerly or inside a capture: it only applies rules,
and these only apply primitives. So there is one definition of every gradient.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

from hpctrain.autograd.bind import EAGER, apply, as_tensor, assign
from hpctrain.autograd.mode import current, pause, record
from hpctrain.autograd.node import Node, Record
from hpctrain.errors import ShapeError

__all__ = ["backward", "grad", "pull_back"]


def _key(tensor: Node) -> tuple[int, int]:
    """Say where a cotangent is kept: at an output of a record, or at a leaf."""
    return (id(tensor), -1) if tensor.creator is None else (id(tensor.creator), tensor.output)


class _Walk:
    """The cotangents known so far, and the records still to be visited, latest first."""

    def __init__(self) -> None:
        self.cotangents: dict[tuple[int, int], Any] = {}
        self.leaves: dict[int, Node] = {}
        self.queue: list[tuple[int, Record]] = []
        self.seen: set[int] = set()

    def add(self, tensor: Node, cotangent: Any) -> None:
        if cotangent.shape != tensor.shape:
            raise ShapeError(f"backward: got a cotangent {cotangent.spec} for {tensor.spec}")
        key = _key(tensor)
        known = self.cotangents.get(key)
        self.cotangents[key] = cotangent if known is None else apply("add", known, cotangent)
        record = tensor.creator
        if record is None:
            self.leaves[id(tensor)] = tensor
        elif id(record) not in self.seen:
            self.seen.add(id(record))
            heapq.heappush(self.queue, (-record.index, record))

    def visit(self, record: Record, keep: set[tuple[int, int]]) -> None:
        places = range(len(record.values))
        take = self.cotangents.get if keep else self.cotangents.pop
        given = [take((id(record), i), None) for i in places]
        if record.row.vjp is None:
            raise ShapeError(f"{record.row.name}: this operation cannot be differentiated")
        outputs = [_output(record, i) for i in places]
        if record.row.onto:
            return self._go_on(record, outputs, given)
        results = record.row.vjp(record.inputs, outputs, given, **record.attrs)
        pairs = list(zip(record.inputs, results, strict=True))
        # Gradients of leaves first: in a plan they are then final sooner, and can travel while
        # what goes on backwards is computed; and the inputs they need are free sooner.
        pairs.sort(key=lambda pair: pair[0].creator is not None)
        for tensor, result in pairs:
            if result is not None and tensor.requires_grad:
                self.add(tensor, result() if callable(result) else result)
        return None

    def _go_on(self, record: Record, outputs: list[Any], given: list[Any]) -> None:
        """Let a rule add its own part to what is known already."""
        assert record.row.vjp is not None
        keys = [_key(tensor) for tensor in record.inputs]
        first = [key not in keys[:place] for place, key in enumerate(keys)]
        known = [
            self.cotangents.get(k) if f else None for k, f in zip(keys, first, strict=True)
        ]
        results = record.row.vjp(record.inputs, outputs, given, known, **record.attrs)
        for tensor, before, result in zip(record.inputs, known, results, strict=True):
            if result is not None and tensor.requires_grad:
                if before is not None:
                    del self.cotangents[_key(tensor)]  # it is part of the result
                self.add(tensor, result)


def _output(record: Record, place: int) -> Any:
    """Make the tensor of an output anew, with its origin: rules may be differentiated too."""
    tensor = Node.from_value(record.values[place], record.specs[place], record.device)
    tensor.creator, tensor.output = record, place
    return tensor


def pull_back(
    heads: Sequence[Any], cotangents: Sequence[Any], wanted: Iterable[Any] = ()
) -> tuple[dict[int, Any], dict[int, Any]]:
    """Pull cotangents back from ``heads`` through the tape.

    Parameters
    ----------
    heads : sequence of Tensor
    cotangents : sequence of Tensor or None
        One for each head; None stands for ones.
    wanted : iterable of Tensor
        Tensors inside the computation whose cotangents are to be kept as well.

    Returns
    -------
    leaves : dict
        The leaves that were reached, by ``id``.
    found : dict
        Cotangent of each leaf and of each wanted tensor, by ``id``.
    """
    walk = _Walk()
    wanted = list(wanted)
    keep = {_key(t) for t in wanted if t.creator is not None}
    for head, cotangent in zip(heads, cotangents, strict=True):
        if not head.requires_grad:
            raise ShapeError(
                "backward: the head does not depend on anything with a gradient; "
                "compute it inside autograd.record() from tensors with attach_grad()"
            )
        walk.add(head, apply("ones_like", head) if cotangent is None else cotangent)
    beside = (current().interpreter or EAGER).beside
    while walk.queue:
        record = heapq.heappop(walk.queue)[1]
        with beside(record.values):
            walk.visit(record, keep)
    found = {ident: walk.cotangents[(ident, -1)] for ident in walk.leaves}
    for tensor in wanted:
        if _key(tensor) in walk.cotangents:
            found[id(tensor)] = walk.cotangents[_key(tensor)]
    return walk.leaves, found


def backward(heads: Any, head_grads: Any = None, retain_graph: bool = False) -> None:
    """Compute the gradients of ``heads`` into the ``.grad`` of every leaf that asks for one.

    Parameters
    ----------
    heads : Tensor or sequence of Tensor
    head_grads : Tensor, sequence of Tensor or None
        Cotangents of the heads; ones if None.
    retain_graph : bool
        Accepted for compatibility: the tape lives as long as the tensors computed from it.

    Notes
    -----
    A leaf is written or added to as its ``grad_req`` says. Cost: each gradient rule once.
    """
    heads, given = _pairs(heads, head_grads)
    with pause(train_mode=current().training):
        leaves, found = pull_back(heads, given)
        for ident, leaf in leaves.items():
            if leaf.grad_req == "write":
                assign(leaf.grad, found[ident])
            elif leaf.grad_req == "add":
                assign(leaf.grad, apply("add", leaf.grad, found[ident]))


def _pairs(heads: Any, head_grads: Any) -> tuple[list[Any], list[Any]]:
    """Return heads and their cotangents as lists of one length; arrays become tensors."""
    heads = [heads] if isinstance(heads, Node) else list(heads)
    if head_grads is None:
        given = [None] * len(heads)
    else:
        given = list(head_grads) if isinstance(head_grads, list | tuple) else [head_grads]
    if len(given) != len(heads):
        raise ShapeError(
            f"backward: got {len(given)} head gradients, needed {len(heads)}, one for each head"
        )
    return heads, [
        None if g is None else as_tensor(g, like=h) for h, g in zip(heads, given, strict=True)
    ]


def grad(
    heads: Any, variables: Any, head_grads: Any = None, create_graph: bool = False
) -> list[Any]:
    """Return the gradients of ``heads`` with respect to ``variables``.

    Parameters
    ----------
    heads, variables : Tensor or sequence of Tensor
        Shapes are free; a variable may be a leaf or a tensor computed on the way.
    head_grads : Tensor, sequence of Tensor or None
        Cotangents of the heads; ones if None.
    create_graph : bool
        Record the gradient computation too, so that it can be differentiated again.

    Returns
    -------
    list of Tensor
        One for each variable, zeros where ``heads`` does not depend on it.

    Raises
    ------
    ShapeError
        If a variable is neither a leaf with a gradient nor computed from one.
    """
    heads, given = _pairs(heads, head_grads)
    variables = [variables] if isinstance(variables, Node) else list(variables)
    for place, variable in enumerate(variables):
        if not variable.requires_grad:
            raise ShapeError(
                f"grad: variable {place}, {variable.spec}, is on no tape; call attach_grad() "
                "before it is used, inside autograd.record()"
            )
    training = current().training
    with record(training) if create_graph else pause(training):
        found = pull_back(heads, given, variables)[1]
        return [found[id(v)] if id(v) in found else apply("zeros_like", v) for v in variables]
