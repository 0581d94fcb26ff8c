"""The workloads of the benchmark: a model, made-up inputs, and a loss."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.models.registry import create
from hpctrain.nn import Block, Loss, MSELoss, SoftmaxCrossEntropyLoss

__all__ = ["WORKLOADS", "Workload", "small_workload", "workload"]

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Workload:
    """One workload.

    Attributes
    ----------
    name : str
    net : Block
        Not initialised; all its shapes are known.
    loss : Loss
        Gives one number for each sample.
    batch : int
        Samples of one rank.
    batch_axis : int
        The axis of inputs and labels that counts samples.
    make : callable
        From a generator of random numbers to input and label, float32 and int64.
    narrow : bool
        Whether products take their factors in bfloat16.
    """

    name: str
    net: Block
    loss: Loss
    batch: int
    batch_axis: int
    make: Callable[[np.random.Generator], Arrays]
    narrow: bool = False


def _vectors(batch: int, inputs: int = 784, classes: int = 10, **_: Any) -> Any:
    return lambda rng: (
        rng.standard_normal((batch, inputs), np.float32),
        rng.integers(classes, size=batch),
    )


def _images(batch: int, size: int = 32, channels: int = 3, classes: int = 10, **_: Any) -> Any:
    return lambda rng: (
        rng.standard_normal((batch, channels, size, size), np.float32),
        rng.integers(classes, size=batch),
    )


def _digits(batch: int, size: int = 28, channels: int = 1, classes: int = 10, **_: Any) -> Any:
    return lambda rng: (
        rng.standard_normal((batch, size, size, channels), np.float32),
        rng.integers(classes, size=batch),
    )


def _columns(batch: int, steps: int = 35, vocab: int = 10_000, **_: Any) -> Any:
    return lambda rng: tuple(rng.integers(vocab, size=(2, steps, batch)))


def _rows(batch: int, steps: int = 128, vocab: int = 1000, **_: Any) -> Any:
    return lambda rng: tuple(rng.integers(vocab, size=(2, batch, steps)))


def _volumes(
    batch: int, size: int = 32, channels: Any = (4,), outputs: int = 4, **_: Any
) -> Any:
    return lambda rng: (
        rng.standard_normal((batch, channels[0], size, size, size), np.float32),
        rng.standard_normal((batch, outputs), np.float32),
    )


@dataclass(frozen=True)
class _Row:
    """Batch, axis, input maker, loss, sizes of the input alone, and sizes for a quick look."""

    batch: int
    make: Callable[..., Any]
    batch_axis: int = 0
    loss: type[Loss] = SoftmaxCrossEntropyLoss
    only_input: tuple[str, ...] = ()
    small: Mapping[str, Any] = field(default_factory=dict)


WORKLOADS: dict[str, _Row] = {
    "mlp": _Row(128, _vectors, small={"inputs": 20, "hidden": (16,)}),
    "lenet": _Row(64, _digits, small={"size": 16}),
    "resnet20": _Row(64, _images, only_input=("size",), small={"size": 8}),
    "lstm": _Row(
        32, _columns, batch_axis=1, only_input=("steps",),
        small={"vocab": 12, "width": 8, "steps": 5},
    ),
    "gpt": _Row(
        8, _rows, small={"vocab": 12, "width": 8, "heads": 2, "depth": 1, "steps": 5}
    ),
    "cosmo": _Row(
        8, _volumes, loss=MSELoss, small={"size": 8, "channels": (2, 4, 4, 4)}
    ),
}  # fmt: skip
SMALL_BATCH = 6


def small_workload(name: str, batch: int = 0) -> "Workload":
    """Return the workload ``name`` in sizes for a quick look, with 6 samples or ``batch``."""
    return workload(name, batch or SMALL_BATCH, **_row(name).small)


def workload(name: str, batch: int = 0, **sizes: Any) -> Workload:
    """Return the workload ``name``.

    Parameters
    ----------
    name : {"mlp", "lenet", "resnet20", "lstm", "gpt", "cosmo"}
    batch : int
        Samples of one rank; that of the benchmark if 0.
    **sizes
        Arguments of the model, and ``size`` or ``steps`` of the input; those of the benchmark
        unless given.
    """
    row = _row(name)
    args = {key: value for key, value in sizes.items() if key not in row.only_input}
    net, batch = create(name, **args), batch or row.batch
    loss = row.loss(batch_axis=row.batch_axis)
    return Workload(name, net, loss, batch, row.batch_axis, row.make(batch, **sizes))


def _row(name: str) -> _Row:
    if name not in WORKLOADS:
        raise ConfigError(f"workload: got {name!r}, needed one of {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
