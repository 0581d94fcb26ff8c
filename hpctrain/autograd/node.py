"""What every tensor carries: a value, its spec, its device, and where it came from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hpctrain.autograd.primitive import Primitive, Spec
from hpctrain.backend import CPU, Device
from hpctrain.errors import ShapeError

__all__ = ["Node", "Record", "Symbol"]


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a value in a graph that is being captured."""

    index: int
    graph: int  # which capture it belongs to


@dataclass(slots=True, eq=False)
class Record:
    """One line of the tape: an operation that has been applied.

    The outputs are kept as values, not as tensors, so that a record and its outputs form no
    cycle: dropping the last output frees everything behind it.
    """

    index: int
    row: Primitive
    inputs: Sequence["Node"]
    attrs: dict[str, Any]
    values: Sequence[Any]
    specs: Sequence[Spec]
    device: Device


class Node:
    """Value, spec and origin of a tensor; its operators are added by `Tensor`."""

    __slots__ = (
        "__weakref__",
        "creator",
        "device",
        "grad",
        "grad_req",
        "output",
        "spec",
        "value",
    )
    kind: ClassVar[type["Node"]]  # the class with the operators; set by the module tensor

    def __init__(self, value: Any, spec: Spec | None = None, device: Device = CPU) -> None:
        self.value = value
        self.spec = spec if spec is not None else Spec.of(value)
        self.device = device
        self.creator: Record | None = None
        self.output = 0
        self.grad: Any = None
        self.grad_req = "null"

    @classmethod
    def from_value(cls, value: Any, spec: Spec, device: Device = CPU) -> Any:
        """Wrap an array or a symbol as it is."""
        node = Node.kind.__new__(Node.kind)
        Node.__init__(node, value, spec, device)
        return node

    @property
    def symbolic(self) -> bool:
        """Whether this stands for a value of a graph that is being captured."""
        return isinstance(self.value, Symbol)

    @property
    def array(self) -> Any:
        """The elements.

        Raises
        ------
        ShapeError
            While a graph is captured: then there are no elements yet.
        """
        if isinstance(self.value, Symbol):
            raise ShapeError(
                "tensor: its elements were asked for while a graph is captured, where only "
                "shape and dtype are known; use operations, or do not hybridize this block"
            )
        return self.value

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.spec.size

    @property
    def context(self) -> Device:
        """The device, in MXNet's word."""
        return self.device

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow through or into this tensor."""
        return self.creator is not None or self.grad_req != "null"

    def attach_grad(self, grad_req: str = "write") -> None:
        """Ask for the gradient of this tensor in ``.grad``.

        Parameters
        ----------
        grad_req : {"write", "add", "null"}
            Whether `backward` overwrites the gradient or adds to it.
        """
        if grad_req not in ("write", "add", "null"):
            raise ShapeError(f"attach_grad: got {grad_req!r}, needed write, add or null")
        self.creator = None
        self.grad_req = grad_req
        if grad_req == "null" or self.symbolic:
            self.grad = None
        else:
            zeros = np.zeros_like if isinstance(self.value, np.ndarray) else None
            array = zeros(self.value) if zeros else self.device.module.zeros_like(self.value)
            self.grad = Node.from_value(array, self.spec, self.device)
