"""A tensor: an array, or while a graph is captured its name, with the record that made it.

The class holds operators only; what they do stands in the primitive table.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain.autograd.backward import backward as pull
from hpctrain.autograd.bind import apply, as_tensor, assign
from hpctrain.autograd.node import Node
from hpctrain.backend import CPU, Device, to_device, to_host
from hpctrain.errors import ShapeError

__all__ = ["Tensor"]


class Tensor(Node):
    """An array on one device that operations can be recorded on.

    Parameters
    ----------
    value : array_like
        The elements; Python floats become float32, integers int64, arrays keep their dtype.
    dtype : dtype, optional
        Element type to convert to.
    device : Device
        Where the array is to live.

    Notes
    -----
    No copy is made of an array that already has the dtype and lies on the device. Tensors are
    values: operations return new ones, movement operations share memory where possible.
    """

    __slots__ = ()
    __array_priority__ = 1000.0
    __array_ufunc__ = None  # numpy_array + tensor is ours

    def __init__(self, value: Any, dtype: Any = None, device: Device = CPU) -> None:
        plain = not hasattr(value, "dtype")
        array = np.asarray(value) if plain else value
        if dtype is None and plain and array.dtype == np.float64:
            dtype = np.float32
        if dtype is not None and array.dtype != dtype:
            array = array.astype(dtype)
        super().__init__(to_device(array, device), device=device)

    def asnumpy(self) -> np.ndarray:
        """Return the elements as a NumPy array on the host; no copy where it is one already."""
        return to_host(self.array)

    def asscalar(self) -> Any:
        """Return the only element as a Python number."""
        if self.size != 1:
            raise ShapeError(f"asscalar: got shape {self.shape}, needed one element")
        return self.asnumpy().reshape(()).item()

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    def __bool__(self) -> bool:
        return bool(self.asscalar())

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        if self.symbolic:
            return f"<Tensor {self.spec} in a graph>"
        return f"{self.asnumpy()}\n<Tensor {self.spec} @{self.device}>"

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self.array
        target[key] = value.array if isinstance(value, Node) else value

    def copyto(self, other: "Tensor") -> "Tensor":
        """Copy the elements into ``other``, across devices, and return it."""
        assign(other, self)
        return other

    def as_in_context(self, device: Device) -> "Tensor":
        """Return this tensor on ``device``; itself if it is there already."""
        return self if device == self.device else Tensor(self.array, device=device)

    def detach(self) -> "Tensor":
        """Return a tensor of the same elements that gradients do not flow through."""
        return Tensor.from_value(self.value, self.spec, self.device)

    def astype(self, dtype: Any) -> "Tensor":
        """Return the elements converted to ``dtype``."""
        return apply("cast", self, dtype=np.dtype(dtype).name)

    def reshape(self, *shape: Any) -> "Tensor":
        """Return the same elements in another shape; one length may be -1."""
        return apply("reshape", self, shape=_flat(shape))

    def transpose(self, *axes: Any) -> "Tensor":
        """Return the axes permuted, reversed if none are given."""
        return apply("transpose", self, axes=_flat(axes) or tuple(range(self.ndim))[::-1])

    @property
    def T(self) -> "Tensor":  # noqa: N802 (NumPy's name)
        """The axes reversed."""
        return self.transpose()

    def sum(self, axis: Any = None, keepdims: bool = False) -> "Tensor":
        """Return the sum over ``axis``, all axes if None."""
        return apply("sum", self, axis=_axes(axis, self.ndim), keepdims=keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> "Tensor":
        """Return the mean over ``axis``, all axes if None."""
        return apply("mean", self, axis=_axes(axis, self.ndim), keepdims=keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> "Tensor":
        """Return the maximum over ``axis``, all axes if None."""
        return apply("max", self, axis=_axes(axis, self.ndim), keepdims=keepdims)

    def backward(self, out_grad: Any = None) -> None:
        """Compute the gradients of this tensor; see `hpctrain.autograd.backward`."""
        pull(self, out_grad)

    def __getitem__(self, key: Any) -> "Tensor":
        return apply("slice", self, key=_key(key, self.shape))

    def __neg__(self) -> "Tensor":
        return apply("negative", self)

    def __pow__(self, other: Any) -> "Tensor":
        return apply("power", self, as_tensor(other, like=self))

    def __matmul__(self, other: Any) -> "Tensor":
        return apply("matmul", self, as_tensor(other, like=self))


def _binary(name: str, swapped: bool = False) -> Any:
    def method(self: Tensor, other: Any) -> Tensor:
        other = as_tensor(other, like=self)
        return apply(name, other, self) if swapped else apply(name, self, other)

    method.__name__ = name
    return method


for _sign, _name in (
    ("add", "add"),
    ("sub", "subtract"),
    ("mul", "multiply"),
    ("truediv", "divide"),
):
    setattr(Tensor, f"__{_sign}__", _binary(_name))
    setattr(Tensor, f"__r{_sign}__", _binary(_name, swapped=True))
for _sign, _name in (
    ("eq", "equal"), ("ne", "not_equal"), ("lt", "less"), ("le", "less_equal"),
    ("gt", "greater"), ("ge", "greater_equal"),
):  # fmt: skip
    setattr(Tensor, f"__{_sign}__", _binary(_name))
Tensor.__hash__ = object.__hash__  # type: ignore[method-assign]
Node.kind = Tensor


def _flat(shape: tuple[Any, ...]) -> tuple[int, ...]:
    if len(shape) == 1 and isinstance(shape[0], Sequence):
        shape = tuple(shape[0])
    return tuple(int(n) for n in shape)


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    return tuple(sorted(int(a) % ndim for a in axes))


def _key(key: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Write a basic index as a hashable tuple: an int or (start, stop, step) for each axis."""
    parts = list(key) if isinstance(key, tuple) else [key]
    # By identity: arrays and tensors compare element by element.
    dots = [place for place, part in enumerate(parts) if part is Ellipsis]
    for at in dots[:1]:
        parts[at : at + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    parts += [slice(None)] * (len(shape) - len(parts))
    if len(parts) > len(shape):
        raise ShapeError(f"slice: got {len(parts)} indices, needed at most {len(shape)}")
    out: list[Any] = []
    for axis, (part, n) in enumerate(zip(parts, shape, strict=True)):
        if isinstance(part, slice):
            start, stop, step = part.indices(n)
            if step < 1:
                raise ShapeError(f"slice: got step {step} on axis {axis}, needed 1 or more")
            out.append((start, max(start, stop), step))
        elif _is_index(part) and -n <= part < n:
            out.append(int(part) % n)
        else:
            raise ShapeError(
                f"slice: got {part!r} on axis {axis} of length {n}, needed a whole number in "
                "range or a slice; use take for arrays of indices"
            )
    return tuple(out)


def _is_index(part: Any) -> bool:
    return isinstance(part, int | np.integer) and not isinstance(part, bool)
