"""The values of parameters and state in the executors of a module."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Tensor
from hpctrain.errors import ConfigError
from hpctrain.symbol import Symbol
from hpctrain.train.executors import Executors
from hpctrain.train.params import first_value

__all__ = ["check_names", "mean_of", "set_values"]


def check_names(
    names: Sequence[str], known: Mapping[str, Any], missing: bool, extra: bool
) -> None:
    """Raise `ConfigError` if values are missing, or too many, and that is not allowed."""
    absent = [name for name in names if name not in known]
    if known and absent and not missing:
        raise ConfigError(
            f"init_params: got no value for {absent[0]!r}; allow_missing=True initialises it"
        )
    more = [name for name in known if name not in names]
    if more and not extra:
        raise ConfigError(
            f"init_params: got {more[0]!r}, which the symbol has not; allow_extra=True leaves "
            "it out"
        )


def set_values(  # noqa: PLR0913 (what a first value depends on)
    executors: Executors,
    symbol: Symbol,
    names: Sequence[str],
    aux: bool,
    known: Mapping[str, Any],
    init: Any,
    seed: int,
) -> None:
    """Set parameters, or state, on every device to known values, or to first ones."""
    attrs = symbol.attr_dict()
    for name in names:
        value = known.get(name)
        if value is None:
            declared = attrs.get(name, {}).get("__init__")
            value = first_value(name, executors.specs[name], init, seed, declared)
        value = value if isinstance(value, Tensor) else Tensor(value)
        for target in executors.aux(name) if aux else executors.args(name):
            value.copyto(target)


def mean_of(tensors: Sequence[Any]) -> np.ndarray:
    """Return the mean over the devices, in the order of these."""
    total: np.ndarray = tensors[0].asnumpy().copy()
    for other in tensors[1:]:
        total += other.asnumpy()
    total /= len(tensors)
    return total
