"""The values of parameters and state in the executors of a module."""

from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.autograd import Tensor
from hpctrain.errors import ConfigError
from hpctrain.io import DataBatch
from hpctrain.symbol import Symbol
from hpctrain.train.bound import Bound
from hpctrain.train.params import first_value

__all__ = [
    "check_names", "named_in", "real_rows", "set_values", "tensors_of", "update_metric",
]  # fmt: skip


def named_in(symbol: Symbol, names: Sequence[str]) -> list[str]:
    """Return the arguments of a symbol; raise `ConfigError` if a name is none of them."""
    arguments = symbol.list_arguments()
    for name in names:
        if name not in arguments:
            raise ConfigError(
                f"Module: got the name {name!r}, needed one of {', '.join(arguments)}"
            )
    return arguments


def tensors_of(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return host arrays as tensors, by the same names."""
    return {name: Tensor(array) for name, array in arrays.items()}


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
    executors: Bound,
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
        targets = executors.aux(name) if aux else executors.args(name)
        if not targets:
            continue
        value = known.get(name)
        if value is None:
            declared = attrs.get(name, {}).get("__init__")
            value = first_value(name, executors.specs[name], init, seed, declared)
        value = value if isinstance(value, Tensor) else Tensor(value)
        for target in targets:
            value.copyto(target)


def real_rows(value: Any, batch: DataBatch) -> Any:
    """Return what belongs to the real rows of a batch.

    Parameters
    ----------
    value : array or Tensor
        One row for each of the batch; or, for steps of sequences, one for each row and step,
        in the order in which the batch holds them.
    batch : DataBatch
    """
    if not batch.pad:
        return value
    count, total = batch.count, batch.count + batch.pad
    if batch.batch_axis == 0:
        return value[: value.shape[0] // total * count]
    steps = batch.data[0].shape[0]
    if value.shape[:2] == (steps, total):
        return value[:, :count]
    rest = value.shape[1:]
    return value.reshape(steps, total, *rest)[:, :count].reshape(steps * count, *rest)


def update_metric(
    metric: Any, outputs: Sequence[Any], labels: Sequence[Any], batch: DataBatch
) -> None:
    """Add the real rows of a batch to a metric; labels of sequences may lie in one list."""
    if not batch.count:
        return
    for output, label in zip(outputs, labels or outputs, strict=False):
        scores, wanted = (real_rows(t.array, batch) for t in (output, label))
        if len(scores) != len(wanted) and len(scores) == wanted.size:
            wanted = wanted.reshape(-1)
        metric.update(scores, wanted)
