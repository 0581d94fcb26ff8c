"""Sets of metrics, metrics by their names, and the file of records."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from hpctrain import backend
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.train.metric import (
    MAE,
    MSE,
    RMSE,
    Accuracy,
    CrossEntropy,
    Custom,
    Loss,
    Metric,
    Perplexity,
    TopK,
)

__all__ = [
    "MAE", "MSE", "RMSE", "Accuracy", "CrossEntropy", "Custom", "Loss", "Metric", "MetricSet",
    "Perplexity", "RecordWriter", "TopK", "create",
]  # fmt: skip

_NAMES: Mapping[str, Callable[..., Metric]] = {
    "acc": Accuracy,
    "accuracy": Accuracy,
    "ce": CrossEntropy,
    "cross-entropy": CrossEntropy,
    "loss": Loss,
    "mae": MAE,
    "mse": MSE,
    "nll-loss": CrossEntropy,
    "nll_loss": CrossEntropy,
    "perplexity": Perplexity,
    "rmse": RMSE,
    "top_k_acc": TopK,
    "top_k_accuracy": TopK,
}


class MetricSet:
    """Several metrics of the same outputs and labels, with one vector for all.

    Examples
    --------
    >>> import numpy as np
    >>> metrics = MetricSet([Accuracy(), MSE()])
    >>> metrics.update(np.array([1.0, 0.0]), np.array([1.0, 1.0]))
    >>> metrics.vector()
    array([1., 2., 1., 2.])
    >>> metrics.values()
    {'accuracy': 0.5, 'mse': 0.5}
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.metrics = list(metrics)

    def update(self, outputs: backend.Array, labels: backend.Array) -> None:
        """Add a batch to each; see ``Metric.update``."""
        for metric in self.metrics:
            metric.update(outputs, labels)

    def vector(self) -> npt.NDArray[np.float64]:
        """Return sum and count of each metric, shape (2 n,), to be added over ranks."""
        pairs = [(metric.total, metric.count) for metric in self.metrics]
        return np.array(pairs, np.float64).reshape(-1)

    def from_vector(self, vector: npt.NDArray[np.float64]) -> "MetricSet":
        """Take sums and counts from a vector, and return the set itself.

        Raises
        ------
        ShapeError
            If the vector is not of this set.
        """
        if vector.shape != (2 * len(self.metrics),):
            raise ShapeError(
                f"MetricSet: got a vector {vector.shape}, needed ({2 * len(self.metrics)},)"
            )
        for metric, (total, count) in zip(self.metrics, vector.reshape(-1, 2), strict=True):
            metric.total, metric.count = float(total), round(float(count))
        return self

    def values(self) -> dict[str, float]:
        """Return the values by name."""
        return dict(metric.get() for metric in self.metrics)

    def get(self) -> tuple[list[str], list[float]]:
        """Return the names and the values."""
        return list(self.values()), list(self.values().values())

    def reset(self) -> None:
        """Forget everything."""
        for metric in self.metrics:
            metric.reset()


Wanted = str | Metric | MetricSet | Callable[..., Any] | Sequence[Any]


def create(metric: Wanted, **options: Any) -> Metric | MetricSet:
    """Make a metric from a name, as MXNet does.

    Parameters
    ----------
    metric : str, callable, Metric, MetricSet, or a sequence of these
        A name such as ``acc``, ``mse``, ``ce``, ``perplexity``, ``top_k_accuracy``; or a
        function of labels and outputs (see ``Custom``).  A sequence makes a set.
    **options
        Arguments of the metric, as ``top_k=5``.

    Raises
    ------
    ConfigError
        If there is no metric of that name, or it does not take these options.
    """
    if isinstance(metric, Metric | MetricSet):
        return metric
    if isinstance(metric, str):
        if metric.lower() not in _NAMES:
            raise ConfigError(f"metric: got {metric!r}, needed one of {', '.join(_NAMES)}")
        kind = _NAMES[metric.lower()]
        try:
            inspect.signature(kind).bind(**options)
        except TypeError as error:
            raise ConfigError(f"metric {metric}: {error}") from None
        return kind(**options)
    if callable(metric):
        return Custom(metric, **options)
    return MetricSet(_flat([create(item, **options) for item in metric]))


def _flat(metrics: Sequence[Metric | MetricSet]) -> list[Metric]:
    nested = [item.metrics if isinstance(item, MetricSet) else [item] for item in metrics]
    return [metric for part in nested for metric in part]


class RecordWriter:
    """Append records to a file, one JSON object a line; each line is written as a whole.

    Parameters
    ----------
    path : path
        Made if missing.

    Notes
    -----
    JSON knows neither NaN nor infinity: both are written as null.
    """

    def __init__(self, path: str | Path) -> None:
        self._handle = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666
        )

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record; it can be read by others at once."""
        line = msgspec.json.encode(record, enc_hook=_plain) + b"\n"
        while line:
            line = line[os.write(self._handle, line) :]

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _plain(value: Any) -> Any:
    """Turn a NumPy scalar into a number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a record cannot hold a {type(value).__name__}")
