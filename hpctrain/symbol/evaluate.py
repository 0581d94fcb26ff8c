"""A symbol as a function over tensors, and the shapes that follow from some of them.

Shapes are inferred by running the operators on names: the rule that says what comes out of a
node is the operation itself. A node that makes zeros for "a batch", with a length of 0, gets
the length with which the operators behind it agree; only lengths that are given come in
question.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from hpctrain.autograd import Spec, Tensor, pause
from hpctrain.autograd.mode import interpreted_by
from hpctrain.errors import ConfigError, HpctrainError, ShapeError
from hpctrain.graph.capture import Capture, as_tuple
from hpctrain.graph.marks import GROUP, NAME, marked
from hpctrain.ops.mxnet_row import SHAPE, Shape
from hpctrain.symbol.node import Entry, Node, auxiliary, in_order

__all__ = ["Shape", "infer", "run"]

# What comes of settings that fit no input: of wrong lengths, of axes that are not there.
_FAULTS = (ArithmeticError, LookupError, TypeError, ValueError, MemoryError, AssertionError)


def run(
    nodes: Sequence[Node],
    heads: Sequence[Entry],
    values: Mapping[int, Any],
    streams: Mapping[int, Any],
) -> list[Any]:
    """Apply the operators to tensors.

    Parameters
    ----------
    nodes : sequence of Node
        In order.
    heads : sequence of (Node, int)
    values : mapping of int to Tensor
        Of the variables, by ``id``.
    streams : mapping of int to Tensor
        Of the nodes that draw random numbers, by ``id``.

    Returns
    -------
    list of Tensor
        One for each head.
    """
    found: dict[int, tuple[Any, ...]] = {ident: (value,) for ident, value in values.items()}
    length = 0
    if any(_is_open(node) for node in nodes):
        plain = {node.name: values[id(node)] for node in nodes if node.operator is None}
        shapes = {name: value.shape for name, value in plain.items()}
        length = _settled(heads, shapes, {n: v.dtype for n, v in plain.items()})[1]
    like = next(iter(values.values()), None)
    for node in nodes:
        if node.operator is not None:
            found[id(node)] = _apply(node, found, streams.get(id(node)), (like, length))
    return [found[id(node)][place] for node, place in heads]


def _is_open(node: Node) -> bool:
    makes = node.operator is not None and node.operator.source
    return makes and 0 in node.attrs.get("shape", ())


def _apply(
    node: Node,
    found: Mapping[int, tuple[Any, ...]],
    stream: Any,
    batch: tuple[Any, int],
) -> tuple[Any, ...]:
    """Apply one operator; ``batch`` is a tensor on its device, and the length of the batch."""
    assert node.operator is not None
    inputs = [found[id(below)][place] for below, place in node.inputs]
    attrs, (like, length) = dict(node.attrs), batch
    if node.operator.random:
        attrs["stream"] = stream
    if node.operator.source:
        attrs["like"] = like
        if "shape" in attrs:
            attrs["shape"] = tuple(n or length for n in attrs["shape"])
    group = node.texts.get("__ctx_group__")
    marks = nullcontext() if group is None else marked(**{GROUP: group, NAME: node.name})
    with _telling(node, inputs), marks:
        results = node.operator.function(*inputs, **attrs)
    return as_tuple(results)


@contextmanager
def _telling(node: Node, inputs: Sequence[Any]) -> Iterator[None]:
    """Tell which node is at fault, and what it was to work on if no operation refused it."""
    assert node.operator is not None
    what = f"the node {node.name!r}, operator {node.operator.name}"
    try:
        yield
    except HpctrainError as error:
        error.add_note(f"in {what}")
        raise
    except _FAULTS as error:
        shapes = ", ".join(str(getattr(x, "shape", x)) for x in inputs)
        raise ShapeError(
            f"{what}: does not fit shapes {shapes} with {dict(node.texts)}: {error!r}"
        ) from error


class _Inference:
    """The specs known so far, by node, while the nodes are walked in order."""

    def __init__(
        self, heads: Sequence[Entry], types: Mapping[str, Any], length: int = 0
    ) -> None:
        self.nodes, self.length = in_order(heads), length
        self.state = auxiliary(self.nodes)
        self.types = types
        self.stream = Tensor(np.zeros(3, np.uint64))
        self.tracer = Capture([self.stream])
        self.found: dict[int, tuple[Any, ...]] = {}

    def set(self, node: Node, shape: Shape) -> None:
        """Let a variable have ``shape``."""
        known = self.shape((node, 0))
        if known is not None and known != shape:
            raise ShapeError(
                f"infer_shape: got shape {known} for {node.name!r}, needed {shape}"
            )
        if known is None:
            dtype = np.dtype(self.types.get(node.name, np.float32))
            self.found[id(node)] = (self.tracer.input(Spec(tuple(shape), dtype)),)

    def shape(self, entry: Entry) -> Shape | None:
        """Return a shape, None if it is not known."""
        node, place = entry
        return self.found[id(node)][place].shape if id(node) in self.found else None

    def visit(self, node: Node) -> None:
        """Complete what a node needs, then see what comes out of it."""
        assert node.operator is not None
        count = len(node.inputs) - len(node.operator.aux)
        shapes = [self.shape(entry) for entry in node.inputs[:count]]
        known = shapes if node.operator.any_shape else shapes[:1]
        if node.operator.shapes and any(shape is not None for shape in known):
            with _telling(node, shapes):
                wanted = node.operator.shapes(node.attrs, shapes)
            self._complete(node, shapes, wanted)
        if node.operator.aux_shapes and shapes[0] is not None:
            with _telling(node, shapes):
                wanted = node.operator.aux_shapes(node.attrs, shapes)
            self._complete(node, [None] * len(wanted), wanted, count)
        if _is_open(node) and not self.length:
            return
        if all(id(below) in self.found for below, _ in node.inputs):
            batch = (self.stream, self.length)
            self.found[id(node)] = _apply(node, self.found, self.stream, batch)

    def _complete(self, node: Node, shapes: Any, wanted: Any, start: int = 0) -> None:
        for (below, _), known, shape in zip(node.inputs[start:], shapes, wanted, strict=False):
            if known is None and shape is not None and below.operator is None:
                self.set(below, shape)


def infer(
    heads: Sequence[Entry],
    shapes: Mapping[str, Sequence[int]],
    types: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Spec], list[Spec | None]]:
    """Infer the specs of all variables and of the heads, from those of some variables.

    Parameters
    ----------
    heads : sequence of (Node, int)
    shapes : mapping of str to sequence of int
        By name of a variable.
    types : mapping of str to dtype, optional
        By name of a variable; float32 where nothing is said.

    Returns
    -------
    variables : dict of str to Spec
        Those that could be inferred.
    outputs : list of (Spec or None)
        One for each head.

    Raises
    ------
    ConfigError
        If there is no variable of a name that is given.
    ShapeError
        If shapes contradict each other.
    """
    inference = _settled(heads, shapes, types or {})[0]
    found = inference.found
    return (
        {
            node.name: found[id(node)][0].spec
            for node in inference.nodes
            if node.operator is None and id(node) in found
        },
        [found[id(node)][place].spec if id(node) in found else None for node, place in heads],
    )


def _settled(
    heads: Sequence[Entry], shapes: Mapping[str, Sequence[int]], types: Mapping[str, Any]
) -> tuple[_Inference, int]:
    """Return the inference with the length of the batch with which no operator disagrees."""
    tried = [0]
    if any(_is_open(node) for node in in_order(heads)):
        axes = max((len(shape) for shape in shapes.values()), default=0)
        tried = [int(s[a]) for a in range(axes) for s in shapes.values() if a < len(s)] or [0]
    problem: ShapeError | None = None
    for length in dict.fromkeys(tried):
        try:
            return _inferred(heads, shapes, types, length), length
        except ShapeError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _inferred(
    heads: Sequence[Entry],
    shapes: Mapping[str, Sequence[int]],
    types: Mapping[str, Any],
    length: int,
) -> _Inference:
    inference = _Inference(heads, types, length)
    variables = {node.name: node for node in inference.nodes if node.operator is None}
    for name in shapes:
        if name not in variables:
            raise ConfigError(
                f"infer_shape: got a shape for {name!r}, needed one of {', '.join(variables)}"
            )
    with interpreted_by(inference.tracer), pause():
        for name, node in variables.items():
            declared = SHAPE.read(node.texts.get("__shape__", "()"))
            shape = tuple(int(n) for n in shapes.get(name, declared))
            if (shape and 0 not in shape) or name in shapes:
                inference.set(node, shape)
        for node in inference.nodes:
            if node.operator is not None:
                inference.visit(node)
    return inference
