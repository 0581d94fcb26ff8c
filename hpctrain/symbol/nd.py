"""Arrays in MXNet's words: ``nd.array``, ``nd.zeros``, and every operator applied at once.

    x = nd.array([[1, 2], [3, 4]])
    y = nd.FullyConnected(x, w, b, num_hidden=10)

What is returned is a `hpctrain.autograd.Tensor`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain import control as contrib
from hpctrain.autograd import Tensor, as_tensor
from hpctrain.backend import CPU, Device
from hpctrain.errors import ConfigError
from hpctrain.ops.mxnet import ALIASES, OPERATORS
from hpctrain.ops.mxnet_row import Operator, parse_attrs, text_of
from hpctrain.symbol.arrays import read_arrays, write_arrays

__all__ = ["NDArray", "array", "contrib", "full", "load", "ones", "save", "waitall", "zeros"]

NDArray = Tensor


def array(source: Any, ctx: Device = CPU, dtype: Any = None) -> Tensor:
    """Return a copy of ``source`` as a tensor; lists become float32, as in MXNet."""
    if isinstance(source, Tensor):
        source = source.asnumpy()
    if dtype is None:
        dtype = source.dtype if isinstance(source, np.ndarray) else np.float32
    return Tensor(np.array(source, dtype), device=ctx)


def full(
    shape: int | Sequence[int], val: float, ctx: Device = CPU, dtype: Any = None
) -> Tensor:
    """Return a tensor of equal elements, float32 if no dtype is given."""
    return Tensor(np.full(shape, val, dtype or np.float32), device=ctx)


def zeros(shape: int | Sequence[int], ctx: Device = CPU, dtype: Any = None) -> Tensor:
    """Return a tensor of zeros, float32 if no dtype is given."""
    return full(shape, 0, ctx, dtype)


def ones(shape: int | Sequence[int], ctx: Device = CPU, dtype: Any = None) -> Tensor:
    """Return a tensor of ones, float32 if no dtype is given."""
    return full(shape, 1, ctx, dtype)


def save(path: str | Path, data: Tensor | Sequence[Any] | Mapping[str, Any]) -> None:
    """Write one tensor, several, or several by name, in MXNet's binary form.

    A path that ends in ``.npz`` gets a NumPy archive, which needs names.
    """
    if isinstance(data, Tensor):
        data = [data]
    if isinstance(data, Mapping):
        write_arrays(path, {name: as_tensor(value).asnumpy() for name, value in data.items()})
    else:
        write_arrays(path, [as_tensor(value).asnumpy() for value in data])


def load(path: str | Path) -> dict[str, Tensor] | list[Tensor]:
    """Return the tensors that `save` or MXNet wrote: a list if they have no names."""
    found = read_arrays(path)
    if isinstance(found, list):
        return [Tensor(value) for value in found]
    return {name: Tensor(value) for name, value in found.items()}


def waitall() -> None:
    """Return at once: operations on tensors have ended when their function returns."""


def __getattr__(name: str) -> Any:
    """Return the function that applies the operator ``name``."""
    operator = OPERATORS.get(ALIASES.get(name, name))
    if operator is None:
        raise AttributeError(f"module 'hpctrain.symbol.nd' has no operator {name!r}")
    return _applier(operator)


def _applier(operator: Operator) -> Any:
    def apply_now(*inputs: Any, out: Any = None, stream: Any = None, **attrs: Any) -> Any:
        given = list(inputs)
        if len(given) == 1 and isinstance(given[0], list | tuple):
            given = list(given[0])
        given += [attrs.pop(n) for n in (*operator.inputs, *operator.aux) if n in attrs]
        attrs.pop("name", None)
        texts = {key: text_of(value) for key, value in attrs.items() if value is not None}
        if operator.count:
            texts.setdefault(operator.count, str(len(given)))
        values = parse_attrs(operator.name, operator, texts)
        names = [*operator.input_names(values), *operator.aux]
        if len(given) != len(names):
            raise ConfigError(
                f"{operator.name}: got {len(given)} tensors, needed {', '.join(names)}"
            )
        extra = {"stream": stream} if operator.random else {}
        if operator.source:
            extra["like"] = None
        result = operator.function(*map(as_tensor, given), **values, **extra)
        return result if out is None else result.copyto(out)

    apply_now.__name__ = operator.name
    apply_now.__doc__ = f"Apply MXNet's operator {operator.name} to tensors."
    return apply_now
