"""MXNet's recurrent operator and its operators on sequences as functions of tensors.

Dimension key: T steps, B sequences, I inputs, H states, G gates. ``RNN`` takes all weights of
all layers and directions in one vector, first the matrices, then the biases:

    for each layer, for each direction: input to gates (G H, I), state to gates (G H, H)
    for each layer, for each direction: bias of the former (G H,), bias of the latter (G H,)
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import assign
from hpctrain.autograd.mode import is_training
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.ops.activations import relu, tanh
from hpctrain.ops.linalg import dense
from hpctrain.ops.movement import flip, reshape
from hpctrain.ops.mxnet_row import (
    BOOL,
    FLOAT,
    INT,
    MAYBE_FLOAT,
    MAYBE_INT,
    TEXT,
    Attrs,
    Operator,
    Shape,
    Shapes,
    first_shape,
)
from hpctrain.ops.random import advance, dropout
from hpctrain.ops.recurrent import gru, lstm
from hpctrain.ops.sequence import sequence_last, sequence_mask, sequence_reverse
from hpctrain.ops.slicing import concat, stack

__all__ = ["RECURRENT", "weight_shapes"]

_LAYERS = 1000
_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


# The fused operator


def _rnn(data: Any, parameters: Any, state: Any, cell: Any = None, **attrs: Any) -> Any:
    _refuse(attrs)
    ways, layers, h = 1 + attrs["bidirectional"], attrs["num_layers"], attrs["state_size"]
    wanted = (layers * ways, data.shape[1], h)
    if state.shape != wanted or (cell is not None and cell.shape != wanted):
        raise ShapeError(f"RNN: got states of shape {state.shape}, needed {wanted}")
    weights = _unpacked(parameters, data.shape[2], attrs)
    x, last, cells = data, list[Any](), list[Any]()
    stream = attrs["stream"]
    for layer in range(layers):
        if layer and attrs["p"] and is_training():
            x = dropout(x, stream, attrs["p"], batch_axis=1)[0]
            assign(stream, advance(stream))
        outs = []
        for way in range(ways):
            i = layer * ways + way
            turned = flip(x, 0) if way else x
            given = (state[i], *(() if cell is None else (cell[i],)))
            y, *rest = _layer(attrs["mode"], turned, given, weights[i])
            outs.append(flip(y, 0) if way else y)
            last.append(rest[0])
            cells += rest[1:]
        x = concat(outs, 2) if ways > 1 else outs[0]
    if not attrs["state_outputs"]:
        return x
    return (x, stack(last), *((stack(cells),) if cells else ()))


def _refuse(attrs: Attrs) -> None:
    if attrs["mode"] not in _GATES:
        raise ConfigError(f"RNN: got mode {attrs['mode']!r}, needed {', '.join(_GATES)}")
    for name in ("projection_size", "lstm_state_clip_min", "lstm_state_clip_max"):
        if attrs[name] is not None:
            raise ConfigError(f"RNN: got {name} {attrs[name]}, needed None")
    if not 0 < attrs["num_layers"] <= _LAYERS or attrs["state_size"] < 1:
        raise ConfigError(
            f"RNN: got {attrs['num_layers']} layers of {attrs['state_size']} states, needed 1 "
            f"to {_LAYERS} layers of at least 1"
        )
    if attrs["use_sequence_length"]:
        raise ConfigError("RNN: got use_sequence_length, needed sequences of one length")


def weight_shapes(
    mode: str, state_size: int, num_layers: int, bidirectional: bool, width: int
) -> tuple[list[Shape], list[Shape]]:
    """Return the shapes of matrices and of biases, in order, for inputs of length ``width``."""
    ways = 1 + bidirectional
    rows = _GATES[mode] * state_size
    ins = [width, *[state_size * ways] * (num_layers - 1)]
    return (
        [s for n in ins for _ in range(ways) for s in ((rows, n), (rows, state_size))],
        [(rows,)] * (2 * ways * num_layers),
    )


def _sizes(attrs: Attrs, width: int) -> tuple[list[Shape], list[Shape]]:
    return weight_shapes(
        attrs["mode"], attrs["state_size"], attrs["num_layers"], attrs["bidirectional"], width
    )


def _unpacked(parameters: Any, width: int, attrs: Attrs) -> list[tuple[Any, ...]]:
    """Return (input matrix, state matrix, input bias, state bias) by layer and direction."""
    matrices, biases = _sizes(attrs, width)
    total = int(np.sum([math.prod(s) for s in (*matrices, *biases)]))
    if parameters.shape != (total,):
        raise ShapeError(f"RNN: got {parameters.shape} parameters, needed ({total},)")
    start, parts = 0, list[Any]()
    for shape in (*matrices, *biases):
        stop = start + math.prod(shape)
        parts.append(reshape(parameters[start:stop], shape))
        start = stop
    m, b = parts[: len(matrices)], parts[len(matrices) :]
    return list(zip(m[::2], m[1::2], b[::2], b[1::2], strict=True))


def _layer(mode: str, x: Any, given: Sequence[Any], weights: Sequence[Any]) -> tuple[Any, ...]:
    """Return outputs, last state and, if there is one, last cell of one layer one way."""
    w_x, w_h, b_x, b_h = weights
    if mode == "lstm":
        return lstm(x, given[0], given[1], w_x, w_h, b_x + b_h)[:3]
    if mode == "gru":
        return gru(x, given[0], w_x, w_h, b_x, b_h)[:2]
    link, h, found = relu if mode == "rnn_relu" else tanh, given[0], []
    steps, rows, width = x.shape
    ahead = reshape(
        dense(reshape(x, (steps * rows, width)), w_x, b_x + b_h), (steps, rows, h.shape[1])
    )
    for step in range(steps):
        h = link(ahead[step] + dense(h, w_h))
        found.append(h)
    return stack(found), h


def _rnn_shapes(attrs: Attrs, shapes: Shapes) -> Shapes:
    _refuse(attrs)
    data = first_shape(shapes)
    sizes = _sizes(attrs, data[2])
    total = int(np.sum([math.prod(s) for group in sizes for s in group]))
    layers = attrs["num_layers"] * (1 + attrs["bidirectional"])
    state = (layers, data[1], attrs["state_size"])
    return [data, (total,), state, state][: len(shapes)]


# Operators on sequences of different lengths


def _by_length(function: Callable[..., Any]) -> Callable[..., Any]:
    def applied(
        data: Any, length: Any = None, *, use_sequence_length: bool, axis: int, **more: Any
    ) -> Any:
        return function(data, length if use_sequence_length else None, axis, **more)

    return applied


def _no_length(attrs: Attrs) -> Sequence[str]:
    return () if attrs["use_sequence_length"] else ("sequence_length",)


def _length_shapes(attrs: Attrs, shapes: Shapes) -> Shapes:
    data = first_shape(shapes)
    return [data, (data[1 - attrs["axis"]],)][: len(shapes)]


def _absent(attrs: Attrs) -> Sequence[str]:
    return () if attrs["mode"] == "lstm" else ("state_cell",)


_OF_SEQUENCES = {"use_sequence_length": BOOL.or_else(False), "axis": INT.or_else(0)}

RECURRENT = (
    Operator(
        "RNN", _rnn, ("data", "parameters", "state", "state_cell"),
        {"state_size": INT, "num_layers": INT, "mode": TEXT,
         "bidirectional": BOOL.or_else(False), "p": FLOAT.or_else(0.0),
         "state_outputs": BOOL.or_else(False), "projection_size": MAYBE_INT,
         "lstm_state_clip_min": MAYBE_FLOAT, "lstm_state_clip_max": MAYBE_FLOAT,
         "lstm_state_clip_nan": BOOL.or_else(False), "use_sequence_length": BOOL.or_else(False),
         "pkeep_": FLOAT.or_else(1.0), "lstm_q_": BOOL.or_else(False)},
        omit=_absent, shapes=_rnn_shapes, random=True,
        outputs=lambda attrs: 1 + attrs["state_outputs"] * (1 + (attrs["mode"] == "lstm")),
        results=("output", "state", "statecell"),
    ),
    # How Gluon's layers join their weights to the vector.
    Operator("_rnn_param_concat", lambda *parts, dim, num_args: concat(parts, dim), (),
             {"dim": INT.or_else(1), "num_args": INT}, count="num_args"),
    *(
        Operator(name, _by_length(function), ("data", "sequence_length"), attrs,
                 omit=_no_length, shapes=_length_shapes)
        for name, function, attrs in (
            ("SequenceMask", sequence_mask, {**_OF_SEQUENCES, "value": FLOAT.or_else(0.0)}),
            ("SequenceLast", sequence_last, _OF_SEQUENCES),
            ("SequenceReverse", sequence_reverse, _OF_SEQUENCES),
        )
    ),
)  # fmt: skip
