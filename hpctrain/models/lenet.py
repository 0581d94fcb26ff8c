"""LeNet, with rectifiers, for images of digits."""

from typing import Any

from hpctrain import nn, ops
from hpctrain.nn.conv import channels_last

__all__ = ["LeNet"]


class LeNet(nn.HybridBlock):
    """Two convolutions with pooling, and two dense layers.

    Parameters
    ----------
    classes : int
        Length of the output.
    channels : int
        Of the input.
    size : int
        Height and width of the input.
    dropout : float
        Share that is dropped before the last layer while training.
    layout : {"auto", "NCHW", "NHWC"}
        Of the input; the channel may also be left out, (N, H, W), if there is only one.

    References
    ----------
    LeCun et al., "Gradient-based learning applied to document recognition", Proc. IEEE 86
    (1998); the widths are those of MXNet's example.
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 1,
        size: int = 28,
        dropout: float = 0.0,
        layout: str = "auto",
        prefix: str | None = None,
    ) -> None:
        super().__init__(prefix)
        self._input = (channels, layout)
        # A maximum over four neighbours makes numbers grow, so the weights begin small.
        small = nn.initializer.Xavier(factor_type="in", magnitude=1.0)
        args: dict[str, Any] = {"layout": "NHWC", "weight_initializer": small}
        side = ((size - 4) // 2 - 4) // 2
        with self.name_scope():
            self.conv1 = nn.Conv2D(20, 5, in_channels=channels, **args)
            self.conv2 = nn.Conv2D(50, 5, in_channels=20, **args)
            self.pool = nn.MaxPool2D(2, layout="NHWC")
            width = 50 * side * side
            self.hidden = nn.Dense(500, "relu", in_units=width, weight_initializer=small)
            self.dropout = nn.Dropout(dropout)
            self.output = nn.Dense(classes, in_units=500, weight_initializer=small)

    def forward(self, x: Any, *args: Any) -> Any:
        """Return (N, classes) for images."""
        x = ops.expand_dims(x, -1) if x.ndim == 3 else channels_last(x, *self._input)
        # The largest of four, rectified: the same as in the other order, of a quarter as many.
        x = ops.relu(self.pool(self.conv1(x)))
        x = ops.relu(self.pool(self.conv2(x)))
        return self.output(self.dropout(self.hidden(x)))
