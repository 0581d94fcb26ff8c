"""Models from MXNet: a folder with a symbol and its parameters, that training goes on from.

``symbol.json`` is the symbol, ``parameters.npz`` has the values of its parameters and state by
name; `store` writes both. What is neither, nor a label, is an input.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain import nn, ops
from hpctrain import symbol as sym
from hpctrain.errors import CheckpointError, ConfigError, ShapeError
from hpctrain.symbol.arrays import load_arrays, save_arrays
from hpctrain.symbol.evaluate import infer
from hpctrain.symbol.node import Entry, in_order

__all__ = ["Imported", "load", "loss_of", "store"]

SYMBOL, PARAMETERS = "symbol.json", "parameters.npz"
LOSSES = {"SoftmaxOutput": "softmax_cross_entropy", "LinearRegressionOutput": "mse"}
_OTHERS = ("LogisticRegressionOutput", "MAERegressionOutput", "MakeLoss")


def store(folder: str | Path, symbol: sym.Symbol, params: Mapping[str, Any]) -> None:
    """Write a symbol and its parameters to a new folder.

    Raises
    ------
    ConfigError
        If the folder is there and not empty.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is there already, needed a new folder; choose another")
    folder.mkdir(parents=True, exist_ok=True)
    symbol.save(folder / SYMBOL)
    save_arrays(folder / PARAMETERS, {name: p.asnumpy() for name, p in params.items()})


def load(folder: str | Path, channels: str = "auto") -> "Imported":
    """Return the model in a folder that `store` wrote.

    Parameters
    ----------
    folder : path
    channels : {"auto", "first", "last"}
        Where images have them; see `Imported`.

    Raises
    ------
    ConfigError
        If the symbol ends in a loss that only `hpctrain.train.module.Module` knows.
    CheckpointError
        If a file is missing or damaged.
    """
    folder = Path(folder)
    for name in (SYMBOL, PARAMETERS):
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{folder}: has no {name}; write it with python -m hpctrain import-mxnet"
            )
    return Imported(sym.load(folder / SYMBOL), load_arrays(folder / PARAMETERS), channels)


def loss_of(symbol: sym.Symbol) -> str:
    """Return the loss that the symbol ends in, by the name in a configuration; or nothing."""
    names = {n.operator.name for n, _ in symbol.heads if n.operator is not None}
    return next((loss for name, loss in LOSSES.items() if name in names), "")


class Imported(nn.SymbolBlock):
    """The trunk of a symbol: what its loss, if it has one, is computed from.

    Parameters
    ----------
    symbol : Symbol
    params : mapping of str to ndarray
        Of parameters and state.
    channels : {"auto", "first", "last"}
        Where images have their channels. ``last`` moves them, since MXNet has them first;
        ``auto`` does so if the symbol does not take images as they are.
    """

    def __init__(
        self, symbol: sym.Symbol, params: Mapping[str, np.ndarray], channels: str = "auto"
    ) -> None:
        if channels not in ("auto", "first", "last"):
            raise ConfigError(f"model: got channels {channels!r}, needed auto, first or last")
        trunk = sym.Symbol([_before_loss(head) for head in symbol.heads])
        plain = [node for node in in_order(trunk.heads) if node.operator is None]
        names = [node.name for node in plain]
        extra = [name for name in params if name not in symbol.list_inputs()]
        if extra:
            raise CheckpointError(f"model: the symbol has no parameter {extra[0]!r}")
        inputs = [sym.Symbol([(node, 0)]) for node in plain if node.name not in params]
        if not inputs:
            raise ConfigError(
                f"model: got values for all of {', '.join(names)}, needed an input"
            )
        super().__init__(trunk, inputs, {n: v for n, v in params.items() if n in names})
        self._channels = channels
        self._shapes = {n: v.shape for n, v in params.items() if n in names}
        self._moved: dict[Any, bool] = {}  # by the shapes of the inputs

    def forward(self, x: Any, *args: Any) -> Any:
        """Return what the loss is computed from."""
        given = (x, *args)
        if self._moves(given):
            given = tuple(_first(each) for each in given)
        return super().forward(*given)

    def _moves(self, given: tuple[Any, ...]) -> bool:
        if self._channels != "auto":
            return self._channels == "last"
        shapes = tuple(x.shape for x in given)
        if shapes not in self._moved:
            moved = tuple(map(_shaped, shapes))
            self._moved[shapes] = not self._takes(shapes) and self._takes(moved)
        return self._moved[shapes]

    def _takes(self, shapes: tuple[Any, ...]) -> bool:
        """Return whether the symbol takes inputs of these shapes."""
        if len(shapes) != len(self._inputs):
            return False
        given = {node.name: shape for node, shape in zip(self._inputs, shapes, strict=True)}
        try:
            infer(self._heads, {**self._shapes, **given})
        except ShapeError:
            return False
        return True


def _before_loss(head: Entry) -> Entry:
    """Return what a loss is computed from; any other output is what it is."""
    node = head[0]
    kind = node.operator.name if node.operator else ""
    attrs = node.attrs
    odd = [k for k in ("multi_output", "use_ignore", "smooth_alpha") if attrs.get(k)]
    if kind in _OTHERS or (kind in LOSSES and odd):
        raise ConfigError(
            f"model: the symbol ends in {kind} {', '.join(odd)}, needed SoftmaxOutput or "
            "LinearRegressionOutput as it comes; train it with Module.fit"
        )
    return node.inputs[0] if kind in LOSSES else head


def _shaped(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[-1], *shape[1:-1]) if len(shape) > 2 else shape


def _first(x: Any) -> Any:
    return ops.transpose(x, (0, x.ndim - 1, *range(1, x.ndim - 1))) if x.ndim > 2 else x
