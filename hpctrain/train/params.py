"""Parameters of a symbol: their first values, and checkpoints by MXNet's file names.

``prefix-symbol.json`` holds the symbol, ``prefix-0003.params`` the parameters after 3 epochs,
with the keys ``arg:name`` and ``aux:name``, in MXNet's binary form. NumPy archives are read
as well.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain import symbol as sym
from hpctrain.autograd import Spec, Tensor
from hpctrain.errors import CheckpointError
from hpctrain.nn.declared import initializer_of
from hpctrain.nn.initializer import create, initial_value
from hpctrain.symbol.arrays import named, read_arrays, write_arrays

__all__ = ["Params", "first_value", "load_checkpoint", "load_params", "save_checkpoint"]

Params = dict[str, Tensor]


def first_value(
    name: str, spec: Spec, init: Any, seed: int = 0, declared: str | None = None
) -> np.ndarray:
    """Return the first value of a parameter or state, the same on every rank.

    Parameters
    ----------
    name : str
        ``…_bias``, ``…_gamma`` and their like have values of their own.
    spec : Spec
    init : str or Initializer
        For all others.
    seed : int
    declared : str, optional
        The variable's own initializer as it stands in a symbol file: ``["zero", {}]``.
    """
    chosen = create(initializer_of(name, init, declared))
    return initial_value(chosen, spec.shape, spec.dtype, seed, name)


def save_checkpoint(
    prefix: str | Path,
    epoch: int,
    symbol: sym.Symbol | None,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
) -> None:
    """Write ``prefix-symbol.json`` and ``prefix-%04d.params``.

    Notes
    -----
    Every rank that calls it writes; on several ranks leave it to rank 0.
    """
    if symbol is not None:
        symbol.save(f"{prefix}-symbol.json")
    arrays = {f"arg:{name}": value.asnumpy() for name, value in arg_params.items()}
    arrays.update({f"aux:{name}": value.asnumpy() for name, value in aux_params.items()})
    write_arrays(f"{prefix}-{epoch:04d}.params", arrays)


def load_checkpoint(prefix: str | Path, epoch: int) -> tuple[sym.Symbol, Params, Params]:
    """Return symbol, parameters and state that `save_checkpoint`, or MXNet, wrote."""
    symbol = sym.load(f"{prefix}-symbol.json")
    return (symbol, *load_params(prefix, epoch))


def load_params(prefix: str | Path, epoch: int) -> tuple[Params, Params]:
    """Return parameters and state that `save_checkpoint`, or MXNet, wrote."""
    path = f"{prefix}-{epoch:04d}.params"
    found: dict[str, Params] = {"arg": {}, "aux": {}}
    for whole, array in named(path, read_arrays(path)).items():
        kind, _, name = whole.partition(":")
        if kind not in found:
            raise CheckpointError(f"{path}: got the key {whole!r}, needed arg:name or aux:name")
        found[kind][name] = Tensor(array)
    return found["arg"], found["aux"]
