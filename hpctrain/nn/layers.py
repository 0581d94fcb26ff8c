"""Layers without a window and without statistics: dense, embedding, dropout, activations."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hpctrain import ops
from hpctrain.autograd import assign
from hpctrain.autograd.mode import is_training
from hpctrain.errors import ConfigError
from hpctrain.nn.block import Block
from hpctrain.nn.hybrid import HybridBlock
from hpctrain.nn.initializer import RandomStream

__all__ = [
    "Activation", "Dense", "Dropout", "Embedding", "Flatten", "HybridLambda", "Identity",
    "Lambda", "LeakyReLU", "activate", "check_activation",
]  # fmt: skip

_ACTIVATIONS = ("relu", "sigmoid", "tanh", "gelu", "softplus", "silu")


def activate(x: Any, name: str | None) -> Any:
    """Apply the activation ``name``; None is the identity."""
    return x if name is None else getattr(ops, name)(x)


def check_activation(where: str, name: str | None) -> str | None:
    """Return ``name`` if there is such an activation.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if name is not None and name not in _ACTIVATIONS:
        raise ConfigError(f"{where}: got {name!r}, needed one of {', '.join(_ACTIVATIONS)}")
    return name


class Dense(HybridBlock):
    """A matrix product and a bias: ``y = x W^T + b``.

    Parameters
    ----------
    units : int
        Length of the last axis of the output.
    activation : str, optional
        Applied to the result.
    use_bias : bool
    flatten : bool
        Whether all axes of the input but the first are one; otherwise only the last axis is
        replaced.
    dtype : dtype
    weight_initializer, bias_initializer : str, Initializer or None
    in_units : int
        Length of the last axis of the input; 0 leaves it to the first input.

    Notes
    -----
    ``weight`` has shape (units, in_units), ``bias`` (units,).
    """

    def __init__(  # noqa: PLR0913 (MXNet's signature)
        self,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        flatten: bool = True,
        dtype: Any = np.float32,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_units: int = 0,
        **names: Any,
    ) -> None:
        super().__init__(**names)
        self._units, self._flatten = units, flatten
        self._activation = check_activation("Dense", activation)
        self.weight = self.params.get(
            "weight", shape=(units, in_units), dtype=dtype, init=weight_initializer
        )
        self.bias = None
        if use_bias:
            self.bias = self.params.get(
                "bias", shape=(units,), dtype=dtype, init=bias_initializer
            )

    def _described(self) -> str:
        return (
            f"{self.weight.shape[1] or None} -> {self._units}, {self._activation or 'linear'}"
        )

    def infer_shape(self, x: Any, *args: Any) -> None:
        """Take ``in_units`` from the input."""
        width = x.size // x.shape[0] if self._flatten else x.shape[-1]
        self.weight.complete((self._units, width))

    def forward(self, x: Any, *args: Any) -> Any:
        """Return (N, units), or (..., units) without ``flatten``."""
        if self._flatten and x.ndim > 2:
            x = ops.flatten(x)
        bias = None if self.bias is None else self.bias.data(x.device)
        y = ops.dense(x, self.weight.data(x.device), bias)
        return activate(y, self._activation)


class Embedding(HybridBlock):
    """A table of vectors, chosen by number.

    Parameters
    ----------
    input_dim : int
        Number of vectors.
    output_dim : int
        Their length.
    dtype : dtype
    weight_initializer : str, Initializer or None
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        dtype: Any = np.float32,
        weight_initializer: Any = None,
        **names: Any,
    ) -> None:
        super().__init__(**names)
        self.weight = self.params.get(
            "weight", shape=(input_dim, output_dim), dtype=dtype, init=weight_initializer
        )

    def _described(self) -> str:
        return f"{self.weight.shape[0]} -> {self.weight.shape[1]}"

    def forward(self, x: Any, *args: Any) -> Any:
        """Return vectors of shape ``x.shape + (output_dim,)`` for whole numbers ``x``."""
        return ops.embedding(x, self.weight.data(x.device))


class Dropout(HybridBlock):
    """Set elements to zero at random while training, and scale the others up.

    Parameters
    ----------
    rate : float
        Share that is set to zero, at least 0 and less than 1.
    batch_axis : int
        The axis of the input that counts samples.

    Notes
    -----
    The random stream is a parameter without gradient, ``stream``: a key, a counter that each
    call moves on, and the number of the batch's first row. So a run can be continued from a
    checkpoint, and a batch that is split over ranks, each told its first row, is treated as it
    would be whole.
    """

    def __init__(self, rate: float, batch_axis: int = 0, **names: Any) -> None:
        super().__init__(**names)
        if not 0 <= rate < 1:
            raise ConfigError(f"Dropout: got rate {rate}, needed at least 0 and less than 1")
        self._rate, self._batch_axis = rate, batch_axis
        self.stream = self.params.get(
            "stream", shape=(3,), dtype=np.uint64, init=RandomStream(), differentiable=False
        )

    def _described(self) -> str:
        return f"rate={self._rate}"

    def forward(self, x: Any, *args: Any) -> Any:
        """Return an array like ``x``."""
        if not self._rate or not is_training():
            return x
        stream = self.stream.data(x.device)
        y = ops.dropout(x, stream, self._rate, batch_axis=self._batch_axis)[0]
        assign(stream, ops.advance(stream))
        return y


class Activation(HybridBlock):
    """Apply a function to each element.

    Parameters
    ----------
    activation : {"relu", "sigmoid", "tanh", "gelu", "softplus", "silu"}
    """

    def __init__(self, activation: str, **names: Any) -> None:
        super().__init__(**names)
        self._activation = check_activation("Activation", activation)

    def _described(self) -> str:
        return str(self._activation)

    def forward(self, x: Any, *args: Any) -> Any:
        """Return an array like ``x``."""
        return activate(x, self._activation)


class LeakyReLU(HybridBlock):
    """Multiply elements below zero by ``alpha``."""

    def __init__(self, alpha: float = 0.01, **names: Any) -> None:
        super().__init__(**names)
        self._alpha = alpha

    def _described(self) -> str:
        return f"alpha={self._alpha}"

    def forward(self, x: Any, *args: Any) -> Any:
        """Return an array like ``x``."""
        return ops.leaky_relu(x, self._alpha)


class Flatten(HybridBlock):
    """Make all axes but the first one axis."""

    def forward(self, x: Any, *args: Any) -> Any:
        """Return an array of shape (N, -1)."""
        return ops.flatten(x)


class Identity(HybridBlock):
    """Return the input."""

    def forward(self, x: Any, *args: Any) -> Any:
        """Return ``x``."""
        return x


class Lambda(Block):
    """A block from a function.

    Parameters
    ----------
    function : callable or str
        Applied to the inputs; a string names a function of `hpctrain.ops`.
    """

    def __init__(self, function: Callable[..., Any] | str, prefix: str | None = None) -> None:
        super().__init__(prefix)
        self._function = _function(function)

    def forward(self, *args: Any) -> Any:
        """Return the function's result."""
        return self._function(*args)


class HybridLambda(HybridBlock):
    """A block from a function ``(F, x, ...)``, which can be captured.

    Parameters
    ----------
    function : callable or str
        ``F`` is `hpctrain.ops`; a string names a function of it.
    """

    def __init__(self, function: Callable[..., Any] | str, prefix: str | None = None) -> None:
        super().__init__(prefix)
        self._function = function

    def forward(self, x: Any, *args: Any) -> Any:
        """Return the function's result."""
        if isinstance(self._function, str):
            return _function(self._function)(x, *args)
        return self._function(ops, x, *args)


def _function(function: Callable[..., Any] | str) -> Callable[..., Any]:
    if not isinstance(function, str):
        return function
    if function not in ops.__all__:
        raise ConfigError(f"Lambda: got {function!r}, needed the name of an operation")
    return getattr(ops, function)
