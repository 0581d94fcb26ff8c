"""Exact metrics: every one is a sum and a count, added over batches and ranks.

The mean of means is wrong where batches or ranks have unequal shares.  Here ranks add their
vectors and divide once, so an accuracy is the number of hits over the number of records.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hpctrain import backend
from hpctrain.errors import ConfigError, DataError, ShapeError

__all__ = [
    "MAE", "MSE", "RMSE", "Accuracy", "CrossEntropy", "Custom", "Loss", "Metric",
    "Perplexity", "TopK",
]  # fmt: skip

Array = npt.NDArray[Any]


class Metric:
    """A sum and a count; its value is one over the other.

    Notes
    -----
    Sums are float64; counts are whole numbers, exact in float64 up to 2**53.
    """

    name = "metric"

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0

    def update(self, outputs: backend.Array, labels: backend.Array) -> None:
        """Add a batch.

        Parameters
        ----------
        outputs : ndarray, on any device
            What the model gave.
        labels : ndarray, on any device
            What was right.

        Raises
        ------
        ShapeError
            If the two do not fit together.
        """
        if isinstance(outputs, list | tuple) or isinstance(labels, list | tuple):
            raise ShapeError(
                f"{self.name}: got a list, needed arrays, first the outputs, then the labels"
            )
        self.add(*self.measure(backend.to_host(outputs), backend.to_host(labels)))

    def measure(self, outputs: Array, labels: Array) -> tuple[float, int]:
        """Return the sum and the count of one batch of host arrays."""
        raise NotImplementedError

    def add(self, total: float, count: int) -> None:
        """Add a sum and a count that were made elsewhere."""
        self.total += float(total)
        self.count += int(count)

    def value(self) -> float:
        """Return the sum over the count; NaN before the first record."""
        return self.total / self.count if self.count else math.nan

    def get(self) -> tuple[str, float]:
        """Return name and value."""
        return self.name, self.value()

    def reset(self) -> None:
        """Forget everything."""
        self.total, self.count = 0.0, 0


class Accuracy(Metric):
    """Share of records whose largest output, the first of equals, is at the label.

    Parameters
    ----------
    axis : int
        The axis of the outputs that runs over the classes.
    """

    name = "accuracy"

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def measure(self, outputs: Array, labels: Array) -> tuple[float, int]:
        """Return hits and records; outputs of the labels' shape are taken as classes."""
        if outputs.shape != labels.shape:
            outputs = _by_class(self.name, outputs, labels, self.axis).argmax(-1)
        return float(np.count_nonzero(outputs == labels)), labels.size


class TopK(Metric):
    """Share of records whose label is among the ``top_k`` largest outputs.

    Of equal outputs those with the lower index count as larger, so that ``top_k`` = 1 is the
    accuracy.
    """

    def __init__(self, top_k: int = 5, axis: int = -1) -> None:
        super().__init__()
        if top_k < 1:
            raise ConfigError(f"TopK: got top_k {top_k}, needed at least 1")
        self.name = f"top_k_accuracy_{top_k}"
        self.top_k = top_k
        self.axis = axis

    def measure(self, outputs: Array, labels: Array) -> tuple[float, int]:
        """Return hits and records."""
        scores = _by_class(self.name, outputs, labels, self.axis)
        index = _classes(self.name, labels, scores.shape[-1])[..., None]
        mine = np.take_along_axis(scores, index, -1)
        earlier = np.arange(scores.shape[-1]) < index
        ahead = np.count_nonzero((scores > mine) | ((scores == mine) & earlier), axis=-1)
        return float(
            np.count_nonzero((ahead < self.top_k) & ~np.isnan(mine[..., 0]))
        ), labels.size


class MSE(Metric):
    """Mean square of the errors over all elements."""

    name = "mse"

    def measure(self, outputs: Array, labels: Array) -> tuple[float, int]:
        """Return the sum of squares and the number of elements."""
        error = _errors(self.name, outputs, labels).ravel()
        return float(error @ error), error.size


class RMSE(MSE):
    """Root of the mean square over the whole set."""

    name = "rmse"

    def value(self) -> float:
        """Return the root."""
        return math.sqrt(super().value())


class MAE(Metric):
    """Mean size of the errors over all elements."""

    name = "mae"

    def measure(self, outputs: Array, labels: Array) -> tuple[float, int]:
        """Return the sum of sizes and the number of elements."""
        error = _errors(self.name, outputs, labels)
        return float(np.abs(error).sum()), error.size


class CrossEntropy(Metric):
    """Mean of -log of the probability given to the label.

    Parameters
    ----------
    from_logits : bool
        Whether outputs are logits; else they are probabilities, as a softmax gives them.
    eps : float
        Added to probabilities before the logarithm.
    ignore_label : int, optional
        Records with this label do not count.
    """

    name = "cross-entropy"

    def __init__(
        self, from_logits: bool = False, eps: float = 1e-12, ignore_label: int | None = None
    ) -> None:
        super().__init__()
        self.from_logits = from_logits
        self.eps = eps
        self.ignore_label = ignore_label

    def measure(self, outputs: Array, labels: Array) -> tuple[float, int]:
        """Return the sum over the records that count, and their number."""
        outputs = _by_class(self.name, outputs, labels, -1)
        used = np.ones(labels.shape, bool)
        if self.ignore_label is not None:
            used = labels != self.ignore_label
        scores = outputs[used].astype(np.float64)
        index = _classes(self.name, labels[used], scores.shape[-1])[:, None]
        mine = np.take_along_axis(scores, index, -1)[:, 0]
        if not self.from_logits:
            return float(-np.log(mine + self.eps).sum()), mine.size
        # The largest logit is taken out first, lest the exponential overflow.
        top = scores.max(-1, initial=-np.inf)
        spread = np.log(np.exp(scores - top[:, None]).sum(-1))
        return float((spread + top - mine).sum()), mine.size


class Perplexity(CrossEntropy):
    """Exponential of the cross-entropy over the whole set."""

    name = "perplexity"

    def value(self) -> float:
        """Return the exponential; infinite where it would overflow."""
        mean = super().value()
        return math.exp(mean) if not mean > 709 else math.inf


class Loss(Metric):
    """Mean of outputs that are losses already; labels are not looked at."""

    name = "loss"

    def measure(self, outputs: Array, labels: Array) -> tuple[float, int]:
        """Return the sum and the number of elements."""
        return float(outputs.sum(dtype=np.float64)), outputs.size


class Custom(Metric):
    """Mean over the records of what a function gives for a batch.

    Parameters
    ----------
    function : callable
        ``function(labels, outputs)``, host arrays, gives the mean over the batch, or the pair
        of sum and count.
    """

    def __init__(self, function: Callable[[Array, Array], Any], name: str = "") -> None:
        super().__init__()
        self.name = name or getattr(function, "__name__", "custom")
        self.function = function

    def measure(self, outputs: Array, labels: Array) -> tuple[float, int]:
        """Return the sum and the count."""
        result = self.function(labels, outputs)
        if isinstance(result, tuple):
            return float(result[0]), int(result[1])
        return float(result) * len(labels), len(labels)


def _by_class(name: str, outputs: Array, labels: Array, axis: int) -> Array:
    """Return the outputs with the classes on the last axis, fitting the labels."""
    moved = np.moveaxis(outputs, axis, -1) if outputs.ndim else outputs
    if moved.ndim != labels.ndim + 1 or moved.shape[:-1] != labels.shape:
        raise ShapeError(
            f"{name}: got outputs {outputs.shape} and labels {labels.shape}, "
            "needed labels of the outputs' shape without the classes"
        )
    return moved


def _classes(name: str, labels: Array, classes: int) -> npt.NDArray[np.int64]:
    index = labels.astype(np.int64)
    if index.size and not 0 <= index.min() <= index.max() < classes:
        raise DataError(
            f"{name}: got labels from {index.min()} to {index.max()}, needed 0 to {classes - 1}"
        )
    return index


def _errors(name: str, outputs: Array, labels: Array) -> npt.NDArray[np.float64]:
    if outputs.shape != labels.shape:
        raise ShapeError(
            f"{name}: got outputs {outputs.shape} and labels {labels.shape}, "
            "needed equal shapes"
        )
    return outputs.astype(np.float64) - labels.astype(np.float64)
