"""Losses: one number for each sample.

A loss is the mean over all axes but that of the batch, so that its size does not depend on
the length of a sample; the mean over samples is left to whoever knows how many there are in
the whole batch, on all ranks.
"""

from typing import Any

from hpctrain import ops
from hpctrain.errors import ShapeError
from hpctrain.nn.hybrid import HybridBlock

__all__ = [
    "L1Loss", "L2Loss", "Loss", "MSELoss", "MaskedSoftmaxCELoss",
    "MaskedSoftmaxCrossEntropyLoss", "SigmoidBCELoss", "SigmoidBinaryCrossEntropyLoss",
    "SoftmaxCELoss", "SoftmaxCrossEntropyLoss",
]  # fmt: skip


class Loss(HybridBlock):
    """What all losses share.

    Parameters
    ----------
    weight : float, optional
        Factor on the loss.
    batch_axis : int
        The axis of the loss that counts samples.
    """

    def __init__(self, weight: float | None = None, batch_axis: int = 0, **names: Any) -> None:
        super().__init__(**names)
        self._weight, self._batch_axis = weight, batch_axis

    def _described(self) -> str:
        return f"batch_axis={self._batch_axis}, weight={self._weight}"

    def forward(self, pred: Any, label: Any, sample_weight: Any = None, *args: Any) -> Any:
        """Return the loss of each sample, shape (N,).

        Parameters
        ----------
        pred : Tensor
            What the model gives.
        label : Tensor
            What it ought to give.
        sample_weight : Tensor, optional
            Factors that broadcast against the loss of each element.
        """
        loss = self._elements(pred, label)
        if sample_weight is not None:
            loss = loss * sample_weight
        if self._weight is not None:
            loss = loss * self._weight
        rest = tuple(a for a in range(loss.ndim) if a != self._batch_axis % loss.ndim)
        return ops.mean(loss, rest) if rest else loss

    def _elements(self, pred: Any, label: Any) -> Any:
        """Return the loss of each element."""
        raise NotImplementedError

    def _alike(self, pred: Any, label: Any) -> Any:
        """Return the label in the shape of the prediction."""
        if pred.size != label.size:
            raise ShapeError(
                f"{self.name}: got labels of shape {label.shape} for predictions of shape "
                f"{pred.shape}"
            )
        return label if label.shape == pred.shape else ops.reshape(label, pred.shape)


class L2Loss(Loss):
    """Half the square of the difference, as MXNet has it."""

    def __init__(self, weight: float | None = 1.0, batch_axis: int = 0, **names: Any) -> None:
        super().__init__(None if weight is None else weight / 2, batch_axis, **names)

    def _elements(self, pred: Any, label: Any) -> Any:
        return ops.square(pred - self._alike(pred, label))


class MSELoss(Loss):
    """The square of the difference."""

    def _elements(self, pred: Any, label: Any) -> Any:
        return ops.square(pred - self._alike(pred, label))


class L1Loss(Loss):
    """The absolute difference."""

    def _elements(self, pred: Any, label: Any) -> Any:
        return ops.abs(pred - self._alike(pred, label))


class SoftmaxCrossEntropyLoss(Loss):
    """Cross-entropy of the softmax over the last axis.

    Parameters
    ----------
    sparse_label : bool
        Whether labels are numbers of classes, of the shape of ``pred`` without its last axis;
        otherwise probabilities of the shape of ``pred``.
    weight, batch_axis
        As in `Loss`.
    """

    def __init__(
        self,
        sparse_label: bool = True,
        weight: float | None = None,
        batch_axis: int = 0,
        **names: Any,
    ) -> None:
        super().__init__(weight, batch_axis, **names)
        self._sparse = sparse_label

    def _elements(self, pred: Any, label: Any) -> Any:
        if not self._sparse:
            return ops.negative(ops.sum(ops.log_softmax(pred) * label, -1))
        if label.dtype.kind == "f":
            label = ops.cast(label, "int64")  # MXNet's labels are floats
        return ops.softmax_cross_entropy(pred, label)


class MaskedSoftmaxCrossEntropyLoss(HybridBlock):
    """Cross-entropy of the softmax over the last axis, the mean over each sample's real steps.

    Parameters
    ----------
    ignore_label : int
        Labels of padding, where no lengths are given.
    weight : float, optional
        Factor on the loss.
    batch_axis : int
        The axis of the labels that counts samples: 1 for (T, N), 0 for (N, T).

    Notes
    -----
    A sample counts once, however long it is, and padding counts for nothing. So on several
    ranks the gradient is that of the mean over all samples of the global batch, whatever
    lengths the ranks have and however they pad: a rank weighs by its samples, as always. A
    mean over the tokens of the global batch would need their number on all ranks first.
    """

    def __init__(
        self,
        ignore_label: int = -1,
        weight: float | None = None,
        batch_axis: int = 0,
        **names: Any,
    ) -> None:
        super().__init__(**names)
        self._ignored, self._weight, self._batch_axis = ignore_label, weight, batch_axis

    def _described(self) -> str:
        return f"batch_axis={self._batch_axis}, ignore_label={self._ignored}"

    def forward(self, pred: Any, label: Any, lengths: Any = None, *args: Any) -> Any:
        """Return the loss of each sample, shape (N,); 0 where it has no real step.

        Parameters
        ----------
        pred : Tensor, shape (T, N, C) or (N, T, C)
        label : Tensor of whole numbers, without the last axis
        lengths : Tensor, shape (N,), optional
        """
        time = 1 - self._batch_axis
        label = ops.cast(label, "int64") if label.dtype.kind == "f" else label
        if lengths is None:
            real = ops.not_equal(label, self._ignored)
        else:
            real = ops.valid_steps(lengths, label.shape[time], time)
        known = ops.where(real, label, ops.zeros_like(label))
        losses = ops.softmax_cross_entropy(pred, known)
        kept = ops.where(real, losses, ops.zeros_like(losses))
        counts = ops.maximum(ops.sum(ops.cast(real, losses.dtype), time), 1)
        mean = ops.sum(kept, time) / counts
        return mean if self._weight is None else mean * self._weight


class SigmoidBinaryCrossEntropyLoss(Loss):
    """Cross-entropy of the sigmoid of each element, with labels from 0 to 1."""

    def _elements(self, pred: Any, label: Any) -> Any:
        return ops.softplus(pred) - pred * self._alike(pred, label)


SoftmaxCELoss = SoftmaxCrossEntropyLoss
MaskedSoftmaxCELoss = MaskedSoftmaxCrossEntropyLoss
SigmoidBCELoss = SigmoidBinaryCrossEntropyLoss
