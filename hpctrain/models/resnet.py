"""Residual networks for small images."""

from typing import Any

from hpctrain import nn, ops
from hpctrain.errors import ConfigError
from hpctrain.nn.conv import channels_last

__all__ = ["ResNet"]

_WIDTHS = (16, 32, 64)


def _conv(channels: int, kernel: int, stride: int, in_channels: int) -> nn.Conv2D:
    return nn.Conv2D(
        channels, kernel, stride, padding=kernel // 2, layout="NHWC", in_channels=in_channels,
        use_bias=False, weight_initializer="msraprelu",
    )  # fmt: skip


def _norm(channels: int) -> nn.BatchNorm:
    return nn.BatchNorm(axis=-1, in_channels=channels)


class BasicBlock(nn.HybridBlock):
    """Two convolutions, added to the input, which is projected where its shape changes."""

    def __init__(
        self, in_channels: int, channels: int, stride: int, prefix: str | None = None
    ) -> None:
        super().__init__(prefix)
        with self.name_scope():
            self.conv1 = _conv(channels, 3, stride, in_channels)
            self.norm1 = _norm(channels)
            self.conv2 = _conv(channels, 3, 1, channels)
            self.norm2 = _norm(channels)
            self.short = None
            if stride != 1 or in_channels != channels:
                self.short = nn.HybridSequential()
                with self.short.name_scope():
                    self.short.add(_conv(channels, 1, stride, in_channels), _norm(channels))

    def forward(self, x: Any, *args: Any) -> Any:
        """Return (N, H / stride, W / stride, channels)."""
        y = ops.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return ops.relu(y + (x if self.short is None else self.short(x)))


class ResNet(nn.HybridBlock):
    """The residual network for 32×32 images: three stages of 16, 32 and 64 channels.

    Parameters
    ----------
    depth : int
        ``6 n + 2`` for n blocks in each stage.
    classes : int
        Length of the output.
    channels : int
        Of the input.
    layout : {"auto", "NCHW", "NHWC"}
        Of the input; ``auto`` finds the axis of as many elements as there are channels.

    References
    ----------
    He et al., "Deep residual learning for image recognition", CVPR 2016, section 4.2; with
    projections instead of padding on the shortcuts.
    """

    def __init__(
        self,
        depth: int = 20,
        classes: int = 10,
        channels: int = 3,
        layout: str = "auto",
        prefix: str | None = None,
    ) -> None:
        super().__init__(prefix)
        if depth < 8 or depth % 6 != 2:
            raise ConfigError(f"ResNet: got depth {depth}, needed 6 n + 2")
        self._input = (channels, layout)
        with self.name_scope():
            self.features = nn.HybridSequential()
            with self.features.name_scope():
                self.features.add(_conv(16, 3, 1, channels), _norm(16), nn.Activation("relu"))
                inner = 16
                for width in _WIDTHS:
                    for place in range((depth - 2) // 6):
                        stride = 2 if place == 0 and width != 16 else 1
                        self.features.add(BasicBlock(inner, width, stride))
                        inner = width
            self.output = nn.Dense(classes, in_units=inner)

    def forward(self, x: Any, *args: Any) -> Any:
        """Return (N, classes) for images."""
        x = self.features(channels_last(x, *self._input))
        return self.output(ops.mean(x, (1, 2)))
