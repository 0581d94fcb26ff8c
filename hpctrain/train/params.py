"""Parameters of a symbol: their first values, and checkpoints by MXNet's file names.

``prefix-symbol.json`` holds the symbol, ``prefix-0003.params`` the parameters after 3 epochs,
with the keys ``arg:name`` and ``aux:name``, in MXNet's binary form. NumPy archives are read
as well.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain import symbol as sym
from hpctrain.autograd import Spec, Tensor
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.nn.initializer import One, Zero, create, initial_value
from hpctrain.symbol.arrays import named, read_arrays, write_arrays

__all__ = ["Params", "first_value", "load_checkpoint", "load_params", "save_checkpoint"]

Params = dict[str, Tensor]

# What MXNet sets without asking the initializer, by the end of the name.
_BY_NAME = {
    "bias": Zero(), "beta": Zero(), "moving_mean": Zero(), "running_mean": Zero(),
    "gamma": One(), "moving_var": One(), "running_var": One(),
}  # fmt: skip


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
    chosen = create(init)
    if declared is not None:
        chosen = _declared(name, declared)
    else:
        chosen = next((v for end, v in _BY_NAME.items() if name.endswith(end)), chosen)
    return initial_value(chosen, spec.shape, spec.dtype, seed, name)


def _declared(name: str, text: str) -> Any:
    try:
        kind, args = json.loads(text) if text.startswith("[") else (text, {})
        chosen = create(kind)
        known = {f.name for f in fields(chosen)} if is_dataclass(chosen) else set()
        return replace(chosen, **{k: v for k, v in args.items() if k in known})  # type: ignore[type-var]
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{name}: got the initializer {text[:80]!r}, needed a name or "
            f'["name", {{arguments}}]: {error}'
        ) from None


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
