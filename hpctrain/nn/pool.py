"""Pooling over one, two or three spatial axes; layouts as in `hpctrain.nn.conv`."""

from collections.abc import Sequence
from typing import Any

from hpctrain import ops
from hpctrain.nn.conv import Windowed, ints

__all__ = [
    "AvgPool1D", "AvgPool2D", "AvgPool3D", "GlobalAvgPool1D", "GlobalAvgPool2D",
    "GlobalAvgPool3D", "MaxPool1D", "MaxPool2D", "MaxPool3D",
]  # fmt: skip


class _Pool(Windowed):
    """Pooling.

    Parameters
    ----------
    pool_size : int or tuple of int
        Lengths of the window.
    strides : int or tuple of int, optional
        Steps of the window; its lengths if None.
    padding : int or tuple of int
        Added at both ends of each spatial axis.
    layout : str, optional
        Channels first (the default) or last.
    """

    def __init__(
        self,
        pool_size: int | Sequence[int] = 2,
        strides: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        layout: str | None = None,
        **names: Any,
    ) -> None:
        super().__init__(layout, **names)
        kind = type(self).__name__
        self._size = ints(pool_size, self.spatial, f"{kind} pool_size")
        steps = self._size if strides is None else strides
        self._strides = ints(steps, self.spatial, f"{kind} strides")
        self._padding = ints(padding, self.spatial, f"{kind} padding")

    def _described(self) -> str:
        return f"{self._size}, strides={self._strides}, {self._layout}"


class _MaxPool(_Pool):
    def _window(self, x: Any) -> Any:
        return ops.max_pool(x, self._size, self._strides, self._padding)[0]


class _AvgPool(_Pool):
    """Averages.

    Parameters
    ----------
    pool_size, strides, padding, layout
        As in the other pools.
    count_include_pad : bool
        Whether the zeros of the padding count as elements.
    """

    def __init__(
        self,
        pool_size: int | Sequence[int] = 2,
        strides: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
        layout: str | None = None,
        count_include_pad: bool = True,
        **names: Any,
    ) -> None:
        super().__init__(pool_size, strides, padding, layout, **names)
        self._include = count_include_pad

    def _window(self, x: Any) -> Any:
        return ops.avg_pool(x, self._size, self._strides, self._padding, self._include)


class _GlobalAvgPool(Windowed):
    """Averages over all spatial axes, which keep length 1."""

    def __init__(self, layout: str | None = None, **names: Any) -> None:
        super().__init__(layout, **names)

    def forward(self, x: Any, *args: Any) -> Any:
        """Return the means; the layout stays."""
        start = 2 if self._first else 1
        return ops.mean(x, tuple(range(start, start + self.spatial)), keepdims=True)


class MaxPool1D(_MaxPool):
    """Take the maximum of each window of a sequence."""

    spatial = 1


class MaxPool2D(_MaxPool):
    """Take the maximum of each window of an image."""

    spatial = 2


class MaxPool3D(_MaxPool):
    """Take the maximum of each window of a volume."""

    spatial = 3


class AvgPool1D(_AvgPool):
    """Take the mean of each window of a sequence."""

    spatial = 1


class AvgPool2D(_AvgPool):
    """Take the mean of each window of an image."""

    spatial = 2


class AvgPool3D(_AvgPool):
    """Take the mean of each window of a volume."""

    spatial = 3


class GlobalAvgPool1D(_GlobalAvgPool):
    """Take the mean of each channel of a sequence."""

    spatial = 1


class GlobalAvgPool2D(_GlobalAvgPool):
    """Take the mean of each channel of an image."""

    spatial = 2


class GlobalAvgPool3D(_GlobalAvgPool):
    """Take the mean of each channel of a volume."""

    spatial = 3
