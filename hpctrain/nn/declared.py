"""How parameters of a symbol begin: by what its file says of them, or by their names."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.nn.initializer import Constant, Initializer, One, Zero, create, fans_of
from hpctrain.ops.mxnet_recurrent import weight_shapes

__all__ = ["FusedRNN", "initializer_of"]

# What MXNet sets without asking the initializer, by the end of the name.
_BY_NAME: Mapping[str, Initializer] = MappingProxyType(
    {
        "bias": Zero(), "beta": Zero(), "moving_mean": Zero(), "running_mean": Zero(),
        "gamma": One(), "moving_var": One(), "running_var": One(),
    }
)  # fmt: skip


@dataclass(frozen=True)
class FusedRNN:
    """Fill the vector of weights of the operator ``RNN`` matrix by matrix, biases with 0.

    Parameters
    ----------
    init : str, Initializer or None
        For the matrices, one for each gate; ``Xavier()`` if None.
    num_hidden, num_layers : int
    mode : {"rnn_relu", "rnn_tanh", "lstm", "gru"}
    bidirectional : bool
    forget_bias : float
        Of the forget gates of an LSTM, in both of the two biases that are added.
    """

    init: Any
    num_hidden: int
    num_layers: int
    mode: str
    bidirectional: bool = False
    forget_bias: float = 1.0

    def __call__(self, rng: np.random.Generator, shape: tuple[int, ...], fans: Any) -> Any:
        """Return a vector."""
        form = (self.mode, self.num_hidden, self.num_layers, self.bidirectional)
        matrices, biases = weight_shapes(*form, 0)
        # What is missing with inputs of length 0 are the first layer's input matrices.
        rest = shape[0] - sum(math.prod(s) for s in (*matrices, *biases))
        width = rest // (matrices[0][0] * (1 + self.bidirectional))
        matrices, biases = weight_shapes(*form, width)
        inner, h, parts = create(self.init), self.num_hidden, list[Any]()
        for rows, columns in matrices:
            gate = (h, columns)
            parts += [inner(rng, gate, fans_of(gate)) for _ in range(rows // h)]
        for (rows,) in biases:
            bias = np.zeros(rows)
            if self.mode == "lstm":
                bias[h : 2 * h] = self.forget_bias
            parts.append(bias)
        return np.concatenate([np.ravel(np.broadcast_to(p, np.shape(p))) for p in parts])


def initializer_of(name: str, default: Any, declared: str | None = None) -> Any:
    """Return what sets a parameter's or state's first value.

    Parameters
    ----------
    name : str
        ``…_bias``, ``…_gamma`` and their like have values of their own.
    default : str, Initializer or None
        For all others.
    declared : str, optional
        The variable's own initializer as it stands in a symbol file: ``["zero", {}]``.

    Raises
    ------
    ConfigError
        If there is no such initializer.
    """
    if declared is None:
        return next((v for end, v in _BY_NAME.items() if name.endswith(end)), default)
    try:
        kind, args = json.loads(declared) if declared.startswith("[") else (declared, {})
        return _made(str(kind).lower(), dict(args), default)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{name}: got the initializer {declared[:80]!r}, needed a name or "
            f'["name", {{arguments}}]: {error}'
        ) from None


def _made(kind: str, args: dict[str, Any], default: Any) -> Any:
    special: dict[str, Callable[..., Any]] = {"constant": Constant, "fusedrnn": FusedRNN}
    if kind == "fusedrnn":
        inner = args.get("init")
        args["init"] = default if inner is None else initializer_of("", default, inner)
    if kind in special:
        return special[kind](**args)
    chosen = create(kind)
    known = {f.name for f in fields(chosen)} if is_dataclass(chosen) else set()
    return replace(chosen, **{k: v for k, v in args.items() if k in known})  # type: ignore[type-var]
