"""A multilayer perceptron."""

from collections.abc import Sequence
from typing import Any

from hpctrain import nn

__all__ = ["MLP"]


class MLP(nn.HybridBlock):
    """Dense layers with rectifiers between them.

    Parameters
    ----------
    inputs : int
        Elements of one sample.
    hidden : sequence of int
        Widths of the hidden layers.
    classes : int
        Length of the output.
    """

    def __init__(
        self,
        inputs: int = 784,
        hidden: Sequence[int] = (2048, 2048),
        classes: int = 10,
        prefix: str | None = None,
    ) -> None:
        super().__init__(prefix)
        with self.name_scope():
            self.features = nn.HybridSequential()
            with self.features.name_scope():
                for width in hidden:
                    self.features.add(
                        nn.Dense(width, "relu", in_units=inputs, weight_initializer="msraprelu")
                    )
                    inputs = width
            self.output = nn.Dense(classes, in_units=inputs)

    def forward(self, x: Any, *args: Any) -> Any:
        """Return (N, classes) for (N, ...)."""
        return self.output(self.features(x))
