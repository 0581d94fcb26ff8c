"""Parameters: named arrays that a model learns or keeps, one copy on each device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain.autograd import Spec, Tensor
from hpctrain.autograd.bind import EAGER
from hpctrain.autograd.mode import current
from hpctrain.backend import Device, empty, to_device, to_host
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.nn.context import as_devices
from hpctrain.nn.initializer import Initializer, create, fans_of, initial_value

__all__ = ["Parameter"]


@dataclass(frozen=True, slots=True)
class _Pending:
    """How to initialise a parameter whose shape is not known yet."""

    init: Initializer
    devices: list[Device]
    seed: int
    key: str


class Parameter:
    """A named array of a model.

    Parameters
    ----------
    name : str
        For messages. The key that checkpoints, exchange and initialisation go by is the
        structural name, which `Block.collect_params` gives.
    shape : tuple of int, optional
        0 stands for a length that the first forward pass tells; None for a whole shape.
    dtype : dtype
    init : str, Initializer or None
        Its own initializer; None leaves the choice to `initialize`.
    grad_req : {"write", "add", "null"}
        Whether `backward` overwrites its gradient, adds to it, or there is none.
    lr_mult, wd_mult : float
        Factors on learning rate and weight decay.
    differentiable : bool
        False for state that is not learned: its ``grad_req`` is ``null`` for ever.
    axes : (int, int)
        Which axes count outputs and inputs, for the initializer.

    Notes
    -----
    The tensors stay the same objects for the life of the parameter, and so do their
    gradients; the arrays in them may be exchanged (for slices of a flat buffer, say). So hold
    the tensor, never the array.
    """

    def __init__(  # noqa: PLR0913 (MXNet's signature)
        self,
        name: str,
        shape: Sequence[int] | int | None = None,
        dtype: Any = np.float32,
        init: Any = None,
        grad_req: str = "write",
        lr_mult: float = 1.0,
        wd_mult: float = 1.0,
        differentiable: bool = True,
        axes: tuple[int, int] = (0, 1),
    ) -> None:
        self.name = name
        self.shape = _shape(shape)
        self.dtype = np.dtype(dtype)
        self.init = init
        self.lr_mult, self.wd_mult = lr_mult, wd_mult
        self.differentiable = differentiable
        self._grad_req = grad_req if differentiable else "null"
        self._axes = axes
        self._data: dict[Device, Any] = {}
        self._pending: _Pending | None = None

    def __repr__(self) -> str:
        return f"Parameter {self.name} (shape={self.shape}, dtype={self.dtype.name})"

    @property
    def known(self) -> bool:
        """Whether every length of the shape is known."""
        return self.shape is not None and 0 not in self.shape

    @property
    def initialized(self) -> bool:
        """Whether there are arrays."""
        return bool(self._data)

    @property
    def grad_req(self) -> str:
        """What `backward` does with the gradient: ``write``, ``add`` or ``null``."""
        return self._grad_req

    @grad_req.setter
    def grad_req(self, value: str) -> None:
        if not self.differentiable and value != "null":
            raise ConfigError(
                f"{self.name}: got grad_req {value!r} for state that is not learned"
            )
        self._grad_req = value
        for tensor in self._data.values():
            if tensor.grad is None or value == "null":
                tensor.attach_grad(value)
            tensor.grad_req = value  # keeps the gradient's array, which others may share

    def complete(self, shape: Sequence[int]) -> None:
        """Fill in the lengths that were unknown, and create the arrays if that was waiting.

        Raises
        ------
        ShapeError
            If ``shape`` contradicts what is known.
        """
        if not self.known:
            self.check(shape)
            self.shape = _shape(shape)
        if self._pending is not None and self.known:
            self._create(self._pending)

    def check(self, shape: Sequence[int] | int | None) -> None:
        """Raise `ShapeError` if ``shape`` contradicts what is known; 0 fits any length."""
        mine, other = self.shape, _shape(shape)
        if mine is None or other is None:
            return
        if len(mine) != len(other) or any(
            a != b and a * b for a, b in zip(mine, other, strict=True)
        ):
            raise ShapeError(f"{self.name}: got shape {other} for a parameter of shape {mine}")

    def initialize(
        self,
        init: Any = None,
        ctx: Device | Sequence[Device] | None = None,
        seed: int = 0,
        key: str | None = None,
        force_reinit: bool = False,
    ) -> None:
        """Create the arrays, or note how to create them once the shape is known.

        Parameters
        ----------
        init : str, Initializer or None
            Used where the parameter has none of its own.
        ctx : Device or sequence of Device, optional
            Where copies are to live; the host if None.
        seed : int
        key : str, optional
            Structural name in the whole model, which the values depend on; ``name`` if None.
        force_reinit : bool
            Begin anew if there are arrays already; otherwise they are left alone.
        """
        if self._data and not force_reinit:
            return
        chosen = create(init if self.init is None else self.init)
        pending = _Pending(chosen, as_devices(ctx), seed, key or self.name)
        if self.known:
            self._create(pending)
        else:
            self._pending = pending

    def _create(self, pending: _Pending) -> None:
        if current().interpreter not in (None, EAGER):
            raise ShapeError(
                f"{self.name}: its shape became known only while a graph is captured; call "
                "complete_shapes with an example input before"
            )
        assert self.shape is not None
        fans = fans_of(self.shape, *self._axes)
        value = initial_value(
            pending.init, self.shape, self.dtype, pending.seed, pending.key, fans
        )
        self._pending = None
        self._place(value, pending.devices)

    def _place(self, value: np.ndarray, devices: Sequence[Device]) -> None:
        """Put copies of ``value`` on ``devices``; tensors that are there stay."""
        kept = {d: t for d, t in self._data.items() if d in devices}
        self._data = {}
        for device in devices:
            tensor = kept.get(device)
            if tensor is None:
                array = empty(value.shape, value.dtype, device)
                tensor = Tensor(array, device=device)
                tensor.attach_grad(self._grad_req)
            tensor.array[...] = to_device(value, device)
            self._data[device] = tensor

    def data(self, ctx: Device | None = None) -> Any:
        """Return the copy on ``ctx``, a leaf tensor; the first copy if None."""
        try:
            return self._data[ctx] if ctx is not None else next(iter(self._data.values()))
        except (KeyError, StopIteration):
            raise self._absent(ctx) from None

    def _absent(self, ctx: Device | None) -> ShapeError:
        if ctx is not None and self._data:
            places = ", ".join(_place_name(d) for d in self._data)
            return ShapeError(
                f"{self.name}: got an input on {_place_name(ctx)}, needed {places}, where its "
                "copies are; move the input, or initialize with another ctx"
            )
        if self._pending is not None:
            return ShapeError(
                f"{self.name}: got shape {self.shape}, whose unknown lengths the first forward "
                "pass tells; run one, or give the whole shape"
            )
        return ShapeError(f"{self.name}: is not initialized; call initialize first")

    def grad(self, ctx: Device | None = None) -> Any:
        """Return the gradient of the copy on ``ctx``, a tensor.

        Raises
        ------
        ShapeError
            If there is no copy, or no gradient is kept.
        """
        found = self.data(ctx).grad
        if found is None:
            raise ShapeError(f"{self.name}: keeps no gradient, because its grad_req is null")
        return found

    def list_data(self) -> list[Any]:
        """Return the copies, one for each device."""
        if not self._data:
            raise self._absent(None)
        return list(self._data.values())

    def list_grad(self) -> list[Any]:
        """Return the gradients, one for each device."""
        return [self.grad(device) for device in self.list_ctx()]

    def list_ctx(self) -> list[Device]:
        """Return the devices that have, or will have, a copy."""
        return list(self._data) or (self._pending.devices if self._pending else [])

    def set_data(self, value: Any, ctx: Device | Sequence[Device] | None = None) -> None:
        """Copy ``value`` into every copy; create these if there are none.

        Parameters
        ----------
        value : array_like or Tensor
            An unknown shape becomes its shape; it is converted to the parameter's dtype.
        ctx : Device or sequence of Device, optional
            Where to create copies if the parameter is not initialized; the host if None.

        Raises
        ------
        ShapeError
            If the shapes differ.
        """
        host = to_host(value.array if isinstance(value, Tensor) else np.asarray(value))
        self.check(host.shape)
        self.shape = host.shape
        devices = self.list_ctx() or as_devices(ctx)
        self._pending = None
        self._place(np.asarray(host, self.dtype), devices)

    def zero_grad(self) -> None:
        """Set the gradients to zero, where there are any."""
        for tensor in self._data.values():
            if tensor.grad is not None:
                tensor.grad.array[...] = 0

    def cast(self, dtype: Any) -> None:
        """Change the element type; the tensors stay, their arrays are new."""
        self.dtype = np.dtype(dtype)
        for tensor in self._data.values():
            for part in (tensor, tensor.grad):
                if part is not None:
                    part.value = part.array.astype(self.dtype)
                    part.spec = Spec(part.shape, self.dtype)

    def reset_ctx(self, ctx: Device | Sequence[Device]) -> None:
        """Move the parameter: copies of the first one on each device of ``ctx``."""
        devices = as_devices(ctx)
        if self._data:
            self._place(self.data().asnumpy(), devices)
        elif self._pending is not None:
            old = self._pending
            self._pending = _Pending(old.init, devices, old.seed, old.key)


def _shape(shape: Sequence[int] | int | None) -> tuple[int, ...] | None:
    if shape is None:
        return None
    return (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)


def _place_name(device: Device) -> str:
    return f"{device.kind}({device.index})"
