"""A regression network for volumes, such as simulations of the cosmic web."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hpctrain import nn
from hpctrain.nn.conv import channels_last

__all__ = ["Cosmo"]


class Cosmo(nn.HybridBlock):
    """Convolutions, each with a leaky rectifier and pooling, then two dense layers.

    Parameters
    ----------
    outputs : int
        Numbers to be told for each volume.
    channels : sequence of int
        Of the input, and after each convolution.
    size : int
        Length of each side of the volume, a multiple of 2 for each convolution.
    hidden : int
        Width of the dense layer.
    slope : float
        Of the rectifiers below zero.
    layout : {"auto", "NCDHW", "NDHWC"}
        Of the input; ``auto`` finds the axis of as many elements as there are channels.

    References
    ----------
    Mathuriya et al., "CosmoFlow: using deep learning to learn the universe at scale", SC 2018.
    """

    def __init__(  # noqa: PLR0913 (its sizes)
        self,
        outputs: int = 4,
        channels: Sequence[int] = (4, 16, 32, 64),
        size: int = 32,
        hidden: int = 128,
        slope: float = 0.3,
        layout: str = "auto",
        prefix: str | None = None,
    ) -> None:
        super().__init__(prefix)
        self._input = (channels[0], layout)
        # A maximum over eight neighbours makes numbers grow, so the weights begin small.
        small = nn.initializer.Xavier(factor_type="in", magnitude=1.0)
        with self.name_scope():
            self.features = nn.HybridSequential()
            with self.features.name_scope():
                for inner, width in pairwise(channels):
                    self.features.add(
                        nn.Conv3D(
                            width, 3, padding=1, layout="NDHWC", in_channels=inner,
                            weight_initializer=small,
                        ),
                        nn.LeakyReLU(slope),
                        nn.MaxPool3D(2, layout="NDHWC"),
                    )  # fmt: skip
            side = size // 2 ** (len(channels) - 1)
            self.hidden = nn.Dense(
                hidden, in_units=channels[-1] * side**3, weight_initializer=small
            )
            self.rectifier = nn.LeakyReLU(slope)
            self.output = nn.Dense(outputs, in_units=hidden, weight_initializer=small)

    def forward(self, x: Any, *args: Any) -> Any:
        """Return (N, outputs) for volumes."""
        x = self.features(channels_last(x, *self._input))
        return self.output(self.rectifier(self.hidden(x)))
