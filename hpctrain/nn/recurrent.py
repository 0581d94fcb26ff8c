"""Recurrent layers: several steps of time and several layers in one call."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from hpctrain import ops
from hpctrain.autograd import Tensor
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.nn.hybrid import HybridBlock
from hpctrain.nn.layers import Dropout

__all__ = ["GRU", "LSTM"]

_SHUT = 1e4  # the sigmoid of this is 1, whatever is added to it


class Recurrent(HybridBlock):
    """What the recurrent layers have in common.

    Parameters
    ----------
    hidden_size : int
        Length of the state, H.
    num_layers : int
        Each takes the outputs of the one before.
    layout : {"TNC", "NTC"}
        Whether time or the batch is the first axis of input and output.
    dropout : float
        Share of the outputs that is dropped between layers while training.
    input_size : int
        Channels of the input; 0 leaves them to the first input.
    i2h_weight_initializer, h2h_weight_initializer : str, Initializer or None
    i2h_bias_initializer, h2h_bias_initializer : str, Initializer or None

    Notes
    -----
    Layer i has ``l{i}_i2h_weight`` (G H, input), ``l{i}_h2h_weight`` (G H, H) and the biases
    ``l{i}_i2h_bias`` and ``l{i}_h2h_bias`` (G H,), with the gates one after the other.
    """

    gates: ClassVar[int]
    states: ClassVar[int]
    held: ClassVar[tuple[float, ...]]  # for each gate, what keeps the cell as it is

    def __init__(  # noqa: PLR0913 (MXNet's signature)
        self,
        hidden_size: int,
        num_layers: int = 1,
        layout: str = "TNC",
        dropout: float = 0.0,
        input_size: int = 0,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        **names: Any,
    ) -> None:
        super().__init__(**names)
        if layout not in ("TNC", "NTC"):
            raise ConfigError(
                f"{type(self).__name__}: got layout {layout!r}, needed TNC or NTC"
            )
        self._hidden, self._layers, self._time_first = hidden_size, num_layers, layout == "TNC"
        initializers = {
            "i2h_weight": i2h_weight_initializer, "h2h_weight": h2h_weight_initializer,
            "i2h_bias": i2h_bias_initializer, "h2h_bias": h2h_bias_initializer,
        }  # fmt: skip
        for layer in range(num_layers):
            for kind, shape in self._shapes(layer, input_size).items():
                name = f"l{layer}_{kind}"
                made = self.params.get(name, shape=shape, init=initializers[kind])
                setattr(self, name, made)
        self._dropouts: list[Dropout] = []
        with self.name_scope():
            for layer in range(num_layers - 1 if dropout else 0):
                self._dropouts.append(Dropout(dropout, batch_axis=1))
                setattr(self, f"dropout{layer}", self._dropouts[-1])

    def _shapes(self, layer: int, input_size: int) -> dict[str, tuple[int, ...]]:
        rows = self.gates * self._hidden
        width = self._hidden if layer else input_size
        return {
            "i2h_weight": (rows, width), "h2h_weight": (rows, self._hidden),
            "i2h_bias": (rows,), "h2h_bias": (rows,),
        }  # fmt: skip

    def _described(self) -> str:
        return f"{self._hidden}, num_layers={self._layers}"

    def infer_shape(self, x: Any, *args: Any) -> None:
        """Take ``input_size`` from the input."""
        self.params["l0_i2h_weight"].complete((self.gates * self._hidden, x.shape[-1]))

    def begin_state(self, batch_size: int, like: Any) -> list[Any]:
        """Return states of zeros, (num_layers, N, H), of the dtype and device of like."""
        zeros = np.zeros((self._layers, batch_size, self._hidden), like.dtype)
        return [Tensor(zeros, device=like.device) for _ in range(self.states)]

    def forward(self, x: Any, states: Any = None, lengths: Any = None, *args: Any) -> Any:
        """Run all layers over all steps.

        Parameters
        ----------
        x : Tensor, shape (T, N, C), or (N, T, C) by the layout
        states : Tensor or list of Tensor, shape (num_layers, N, H), optional
            Zeros if None.
        lengths : Tensor of whole numbers up to T, shape (N,), optional
            Steps of each sequence that are real. Padding behind them changes nothing, not by
            one bit: outputs there are 0, and new states are those after the last real step.

        Returns
        -------
        Tensor, shape (T, N, H) or (N, T, H)
            The outputs of the last layer; if states were given, a pair with the list of new
            states.
        """
        if x.ndim != 3:
            raise ShapeError(f"{self.name}: got an input of shape {x.shape}, needed three axes")
        if not self._time_first:
            x = ops.transpose(x, (1, 0, 2))
        given = states is not None
        states = states if given else self.begin_state(x.shape[1], x)
        states = [states] if isinstance(states, Tensor) else list(states)
        new: list[Sequence[Any]] = []
        for layer in range(self._layers):
            own = [state[layer] for state in states]
            x, found = self._over_lengths(x, own, self._weights(layer, x), lengths)
            new.append(found)
            if layer < len(self._dropouts):
                x = self._dropouts[layer](x)
        if not self._time_first:
            x = ops.transpose(x, (1, 0, 2))
        if not given:
            return x
        return x, [ops.stack(kind, 0) for kind in zip(*new, strict=True)]

    def _weights(self, layer: int, x: Any) -> list[Any]:
        kinds = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")
        return [getattr(self, f"l{layer}_{kind}").data(x.device) for kind in kinds]

    def _over_lengths(
        self, x: Any, states: list[Any], weights: list[Any], lengths: Any
    ) -> tuple[Any, list[Any]]:
        """Run a layer that padding leaves as it is.

        One more input, 1 in padding and 0 elsewhere, drives the gates so far that they are
        exactly open or closed: then the cell keeps its value.
        """
        if lengths is None:
            return self._layer(x, states, weights)
        steps = x.shape[0]
        padding = ops.logical_not(ops.valid_steps(lengths, steps))
        mark = ops.expand_dims(ops.cast(padding, x.dtype), 2)
        column = np.repeat(np.array(self.held, x.dtype), self._hidden)[:, None]
        w_x = ops.concat([weights[0], Tensor(column, device=x.device)], 1)
        y, new = self._layer(ops.concat([x, mark], 2), states, [w_x, *weights[1:]])
        # What a gate lets out is not held; so the last output is looked up.
        last = ops.sequence_last(y, ops.maximum(lengths, 1))
        some = ops.expand_dims(ops.greater(lengths, 0), 1)
        return ops.sequence_mask(y, lengths), [ops.where(some, last, states[0]), *new[1:]]

    def _layer(self, x: Any, states: list[Any], weights: list[Any]) -> tuple[Any, list[Any]]:
        """Return outputs (T, N, H) and the last states of one layer."""
        raise NotImplementedError


class LSTM(Recurrent):
    """Long short-term memory; gates i, f, g, o; states h and c. Arguments as in `Recurrent`.

    References
    ----------
    Hochreiter and Schmidhuber, "Long short-term memory", Neural Computation 9 (1997).
    """

    gates, states, held = 4, 2, (-_SHUT, _SHUT, 0.0, 0.0)

    def _layer(self, x: Any, states: list[Any], weights: list[Any]) -> tuple[Any, list[Any]]:
        w_x, w_h, b_x, b_h = weights
        y, h, c = ops.lstm(x, states[0], states[1], w_x, w_h, b_x + b_h)[:3]
        return y, [h, c]


class GRU(Recurrent):
    """Gated recurrent units; gates r, z, n; state h. Arguments as in `Recurrent`.

    The bias of the recurrent product of gate n stands inside the product with r, as in cuDNN.

    References
    ----------
    Cho et al., "Learning phrase representations using RNN encoder-decoder", EMNLP 2014.
    """

    gates, states, held = 3, 1, (0.0, _SHUT, 0.0)

    def _layer(self, x: Any, states: list[Any], weights: list[Any]) -> tuple[Any, list[Any]]:
        y, h = ops.gru(x, states[0], *weights)[:2]
        return y, [h]
