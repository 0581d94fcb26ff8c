"""The one door through which an operation is applied: run now, recorded, or put in a graph."""

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from hpctrain.autograd.mode import Interpreter, current
from hpctrain.autograd.node import Node, Record
from hpctrain.autograd.primitive import Primitive, Spec, primitive
from hpctrain.backend import Device, module_of, to_device
from hpctrain.errors import ShapeError

__all__ = ["EAGER", "Eager", "apply", "apply_row", "as_tensor", "assign", "run_row"]

_COUNT = itertools.count()  # gives records their order; next() is atomic


def as_tensor(value: Any, like: Node | None = None) -> Any:
    """Return ``value`` as a tensor.

    Numbers and lists of numbers take the dtype of ``like`` where it can hold their kind (a
    fraction beside whole numbers becomes float32), and its device; arrays keep their dtype.
    """
    if isinstance(value, Node):
        return value
    if like is None:
        return Node.kind(value)
    if isinstance(value, np.generic) or not hasattr(value, "dtype"):
        value = np.asarray(value, _weak(np.asarray(value).dtype, like.dtype))
    array = to_device(value, like.device)
    return Node.from_value(array, Spec.of(array), like.device)


def _weak(given: np.dtype[Any], like: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that plain numbers get beside a tensor."""
    kinds = "biuf"
    if given.kind not in kinds:
        raise ShapeError(f"tensor: got elements of {given}, needed numbers")
    if kinds.find(given.kind) <= kinds.find(like.kind) or {given.kind, like.kind} == {*"iu"}:
        return like
    return np.dtype(np.float32 if given.kind == "f" else np.int64)


def run_row(
    row: Primitive, arrays: Sequence[Any], attrs: dict[str, Any], specs: Any
) -> list[Any]:
    """Run a row at once on ``arrays`` into newly allocated outputs, and return these."""
    if row.view is not None:
        seen = row.view(arrays[0], **attrs)
        if seen is not None:
            return [seen]
    xp = module_of(arrays[0])
    outs = [xp.empty(s.shape, s.dtype) for s in specs]
    scratch: list[Any] = []
    if row.scratch is not None:
        wanted = row.scratch([Spec.of(a) for a in arrays], **attrs)
        scratch = [xp.empty(s.shape, s.dtype) for s in wanted]
    row.kernel(xp, arrays, outs, scratch, **attrs)
    return outs


class Eager:
    """Runs every operation at the call."""

    def apply(
        self,
        row: Primitive,
        inputs: Sequence[Any],
        attrs: dict[str, Any],
        specs: Sequence[Spec],
    ) -> Sequence[Any]:
        """Run ``row`` on the arrays of ``inputs``."""
        return run_row(row, [t.array for t in inputs], attrs, specs)

    def assign(self, target: Any, source: Any) -> None:
        """Copy the elements of ``source`` into ``target``."""
        target.array[...] = to_device(source.array, target.device)

    def kept(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return ``inputs`` themselves."""
        return inputs

    def beside(self, values: Sequence[Any]) -> AbstractContextManager[Any]:
        """Return a scope that changes nothing."""
        return nullcontext()


EAGER: Interpreter = Eager()


def apply_row(row: Primitive, inputs: Sequence[Any], attrs: dict[str, Any]) -> tuple[Any, ...]:
    """Apply ``row`` to tensors and return its outputs.

    Parameters
    ----------
    row : Primitive
    inputs : sequence of Tensor
        All on one device.
    attrs : dict
        Hashable values by name.

    Raises
    ------
    ShapeError
        If shapes, dtypes or devices do not fit.
    """
    mode = current()
    specs = row.infer([t.spec for t in inputs], **attrs)
    device = inputs[0].device
    for other in inputs:
        if other.device != device:
            raise ShapeError(
                f"{row.name}: got tensors on {_place(device)} and {_place(other.device)}, "
                "needed one device; move one with as_in_context"
            )
    interpreter = mode.interpreter or EAGER
    values = interpreter.apply(row, inputs, attrs, specs)
    outputs = tuple(Node.from_value(v, s, device) for v, s in zip(values, specs, strict=True))
    if mode.recording and any(t.requires_grad for t in inputs):
        kept = interpreter.kept(inputs)
        record = Record(next(_COUNT), row, kept, attrs, values, specs, device)
        for place, output in enumerate(outputs):
            output.creator, output.output = record, place
    return outputs


def _place(device: Device) -> str:
    return f"{device.kind}({device.index})"


def apply(name: str, *inputs: Any, **attrs: Any) -> Any:
    """Apply the primitive ``name``; return a tensor, or a tuple if it has several outputs."""
    outputs = apply_row(primitive(name), inputs, attrs)
    return outputs[0] if len(outputs) == 1 else outputs


def assign(target: Any, source: Any) -> None:
    """Let ``target``, a tensor that holds state, take the elements of ``source``.

    Eagerly they are copied at once. In a captured graph the copy happens in each run, after
    everything that reads the old elements.
    """
    if target.spec != source.spec:
        raise ShapeError(f"assign: got {source.spec} for a tensor of {target.spec}")
    (current().interpreter or EAGER).assign(target, source)
