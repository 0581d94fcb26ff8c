"""Convolution over one, two or three spatial axes.

Layouts are written with N for samples, C for channels, and the spatial axes D, H, W. The
default is MXNet's, channels first. The operations work channels last: a layer with channels
first transposes on its way in and out.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from hpctrain import ops
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.nn.hybrid import HybridBlock
from hpctrain.nn.layers import activate, check_activation

__all__ = [
    "Conv", "Conv1D", "Conv2D", "Conv2DTranspose", "Conv3D", "Windowed", "channels_last",
    "first_to_last", "ints", "last_to_first",
]  # fmt: skip

_AXES = {1: "W", 2: "HW", 3: "DHW"}


def first_to_last(x: Any) -> Any:
    """Move axis 1 to the end: (N, C, ...) to (N, ..., C)."""
    return ops.transpose(x, (0, *range(2, x.ndim), 1))


def channels_last(x: Any, channels: int, layout: str) -> Any:
    """Return images or volumes with their channels on the last axis.

    Parameters
    ----------
    x : Tensor, shape (N, C, ...) or (N, ..., C)
    channels : int
        C; tells which of both it is where ``layout`` is ``auto``.
    layout : str
        ``auto``, or a layout such as NCHW or NHWC.

    Raises
    ------
    ShapeError
        If no axis that could hold the channels has their length.
    """
    first = x.shape[1] == channels and layout[-1] != "C"
    if layout == "auto":
        first = x.shape[1] == channels and x.shape[-1] != channels
    if x.shape[1 if first else -1] != channels:
        raise ShapeError(f"got shape {x.shape} in layout {layout}, needed {channels} channels")
    return first_to_last(x) if first else x


def last_to_first(x: Any) -> Any:
    """Move the last axis to place 1: (N, ..., C) to (N, C, ...)."""
    return ops.transpose(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))


def ints(value: int | Sequence[int], count: int, where: str) -> tuple[int, ...]:
    """Return ``value`` as ``count`` whole numbers, one for each spatial axis."""
    found = (value,) * count if isinstance(value, int) else tuple(int(n) for n in value)
    if len(found) != count:
        raise ConfigError(f"{where}: got {value}, needed one number or {count}")
    return found


class Windowed(HybridBlock):
    """What slides over spatial axes, in either layout."""

    spatial: ClassVar[int]

    def __init__(self, layout: str | None, **names: Any) -> None:
        super().__init__(**names)
        axes = _AXES[self.spatial]
        layout = layout or "NC" + axes
        if layout not in ("NC" + axes, f"N{axes}C"):
            raise ConfigError(
                f"{type(self).__name__}: got layout {layout!r}, needed NC{axes} or N{axes}C"
            )
        self._layout, self._first = layout, layout[1] == "C"

    def _window(self, x: Any) -> Any:
        """Return the result for ``x`` with channels last."""
        raise NotImplementedError

    def forward(self, x: Any, *args: Any) -> Any:
        """Return the result in the layout of the input."""
        if x.ndim != self.spatial + 2:
            raise ShapeError(
                f"{self.name}: got an input of shape {x.shape}, needed {self._layout}, "
                f"{self.spatial + 2} axes"
            )
        if not self._first:
            return self._window(x)
        return last_to_first(self._window(first_to_last(x)))


class Conv(Windowed):
    """What the convolutions of one, two and three axes have in common.

    Parameters
    ----------
    channels : int
        Channels of the output.
    kernel_size, strides, padding, dilation : int or tuple of int
        For all spatial axes, or for each.
    groups : int
        Parts into which the channels fall that do not see each other.
    layout : str, optional
        ``NCW``, ``NCHW``, ``NCDHW`` (the default), or with C last.
    in_channels : int
        Channels of the input; 0 leaves them to the first input.
    activation : str, optional
    use_bias : bool
    weight_initializer, bias_initializer : str, Initializer or None
    dtype : dtype

    Notes
    -----
    ``weight`` has shape (channels, in_channels / groups, *kernel), or with channels last
    (channels, *kernel, in_channels / groups).
    """

    def __init__(  # noqa: PLR0913 (MXNet's signature)
        self,
        channels: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        layout: str | None = None,
        in_channels: int = 0,
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        dtype: Any = np.float32,
        **names: Any,
    ) -> None:
        super().__init__(layout, **names)
        kind = type(self).__name__
        self._activation = check_activation(kind, activation)
        self._channels, self._groups = channels, groups
        self._kernel = ints(kernel_size, self.spatial, f"{kind} kernel_size")
        self._args: dict[str, Any] = {
            "stride": ints(strides, self.spatial, f"{kind} strides"),
            "padding": ints(padding, self.spatial, f"{kind} padding"),
            "dilation": ints(dilation, self.spatial, f"{kind} dilation"),
            "groups": groups,
        }
        self.weight = self.params.get(
            "weight", shape=self._weight_shape(in_channels), dtype=dtype,
            init=weight_initializer, axes=self._fan_axes(),
        )  # fmt: skip
        self.bias = None
        if use_bias:
            self.bias = self.params.get(
                "bias", shape=(channels,), dtype=dtype, init=bias_initializer
            )

    def _weight_shape(self, in_channels: int) -> tuple[int, ...]:
        if in_channels % self._groups or self._channels % self._groups:
            raise ConfigError(
                f"{self.name}: got {in_channels} and {self._channels} channels, needed "
                f"multiples of {self._groups} groups"
            )
        return self._ordered(self._channels, in_channels // self._groups)

    def _ordered(self, first: int, second: int) -> tuple[int, ...]:
        if self._first:
            return (first, second, *self._kernel)
        return (first, *self._kernel, second)

    def _fan_axes(self) -> tuple[int, int]:
        return (0, 1) if self._first else (0, -1)

    def _described(self) -> str:
        return f"{self._channels}, kernel={self._kernel}, {self._layout}"

    def infer_shape(self, x: Any, *args: Any) -> None:
        """Take ``in_channels`` from the input."""
        self.weight.complete(self._weight_shape(x.shape[1 if self._first else -1]))

    def _window(self, x: Any) -> Any:
        weight = self.weight.data(x.device)
        if self._first:
            weight = first_to_last(weight)
        bias = None if self.bias is None else self.bias.data(x.device)
        return activate(self._product(x, weight, bias), self._activation)

    def _product(self, x: Any, weight: Any, bias: Any) -> Any:
        return ops.conv(x, weight, bias, **self._args)


class Conv1D(Conv):
    """Convolve along one axis; arguments as in `Conv`."""

    spatial = 1


class Conv2D(Conv):
    """Convolve images; arguments as in `Conv`."""

    spatial = 2


class Conv3D(Conv):
    """Convolve volumes; arguments as in `Conv`."""

    spatial = 3


class Conv2DTranspose(Conv):
    """Apply the adjoint of a convolution, which enlarges images by its strides.

    Parameters
    ----------
    channels, kernel_size : int, int or tuple of int
    output_padding : int or tuple of int
        Added to the lengths of the result, at their ends.
    **args
        As in `Conv`.

    Notes
    -----
    ``weight`` has shape (in_channels, channels / groups, *kernel), or with channels last
    (in_channels, *kernel, channels / groups).
    """

    spatial = 2

    def __init__(
        self,
        channels: int,
        kernel_size: int | Sequence[int],
        output_padding: int | Sequence[int] = 0,
        **args: Any,
    ) -> None:
        super().__init__(channels, kernel_size, **args)
        self._args["output_padding"] = ints(output_padding, 2, "Conv2DTranspose output_padding")

    def _ordered(self, first: int, second: int) -> tuple[int, ...]:
        return super()._ordered(second * self._groups, first // self._groups)

    def _fan_axes(self) -> tuple[int, int]:
        return (1, 0) if self._first else (-1, 0)

    def _product(self, x: Any, weight: Any, bias: Any) -> Any:
        return ops.conv_transpose(x, weight, bias, **self._args)
