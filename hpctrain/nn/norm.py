"""Normalisation: over the batch, and over the channels of each position."""

from typing import Any

from hpctrain import ops
from hpctrain.autograd import assign
from hpctrain.autograd.mode import is_training
from hpctrain.nn.block import Block
from hpctrain.nn.hybrid import HybridBlock
from hpctrain.ops.sync_norm import ALONE, Combiner

__all__ = ["BatchNorm", "LayerNorm", "SyncBatchNorm", "convert_sync_batch_norm"]


class BatchNorm(HybridBlock):
    """Normalise each channel by mean and variance over the batch.

    Parameters
    ----------
    axis : int
        The axis of channels.
    momentum : float
        ``running = momentum * running + (1 - momentum) * batch`` after each training step.
    epsilon : float
        Added to the variance.
    center, scale : bool
        Whether ``beta`` and ``gamma`` are learned; otherwise they stay 0 and 1.
    use_global_stats : bool
        Whether to use the running statistics in training too.
    in_channels : int
        Number of channels; 0 leaves it to the first input.

    Notes
    -----
    The running variance is that of MXNet on CPUs: the mean square deviation in the batch,
    divided by n. (PyTorch divides by n - 1 there, and counts momentum the other way.)

    References
    ----------
    Ioffe and Szegedy, "Batch normalization", ICML 2015.
    """

    def __init__(  # noqa: PLR0913 (MXNet's signature)
        self,
        axis: int = 1,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        use_global_stats: bool = False,
        in_channels: int = 0,
        **names: Any,
    ) -> None:
        super().__init__(**names)
        self._axis, self._momentum, self._epsilon = axis, momentum, epsilon
        self._global = use_global_stats
        self._combine: Combiner | None = None
        shape = (in_channels,)
        self.gamma = self.params.get("gamma", shape=shape, init="ones", differentiable=scale)
        self.beta = self.params.get("beta", shape=shape, init="zeros", differentiable=center)
        self.running_mean = self.params.get(
            "running_mean", shape=shape, init="zeros", differentiable=False
        )
        self.running_var = self.params.get(
            "running_var", shape=shape, init="ones", differentiable=False
        )

    def _described(self) -> str:
        return f"{self.gamma.shape[0] or None}, axis={self._axis}, momentum={self._momentum}"

    def infer_shape(self, x: Any, *args: Any) -> None:
        """Take the number of channels from the input."""
        for _, parameter in self.own_params():
            parameter.complete((x.shape[self._axis],))

    def forward(self, x: Any, *args: Any) -> Any:
        """Return an array like ``x``."""
        last = x.ndim - 1
        order = [a for a in range(x.ndim) if a != self._axis % x.ndim] + [self._axis % x.ndim]
        if order[-1] == last:
            return self._normalized(x)
        y = self._normalized(ops.transpose(x, order))
        return ops.transpose(y, [order.index(a) for a in range(x.ndim)])

    def _normalized(self, x: Any) -> Any:
        gamma, beta = self.gamma.data(x.device), self.beta.data(x.device)
        mean, var = self.running_mean.data(x.device), self.running_var.data(x.device)
        if self._global or not is_training():
            return ops.batch_norm_inference(x, gamma, beta, mean, var, self._epsilon)
        if self._combine is None:
            y, batch_mean, batch_var = ops.batch_norm(x, gamma, beta, self._epsilon)
        else:
            y, batch_mean, batch_var = ops.sync_batch_norm(
                x, gamma, beta, self._epsilon, self._combine
            )
        for running, batch in ((mean, batch_mean), (var, batch_var)):
            batch = batch.detach()
            assign(running, running * self._momentum + batch * (1 - self._momentum))
        return y

    def synchronise(self, combine: Combiner | None) -> None:
        """Take statistics over all who share ``combine`` from now on; None: over what is here.

        Parameters
        ----------
        combine : callable
            For the ranks of a group, `hpctrain.parallel.together.Combine`.
        """
        self._combine = combine
        self._changed()


class SyncBatchNorm(BatchNorm):
    """Batch normalisation whose statistics are over all processes that share a batch.

    Parameters
    ----------
    in_channels : int
        Number of channels; 0 leaves it to the first input.
    num_devices : int, optional
        Of MXNet, and without effect: ``combine`` knows them.
    combine : callable
        What puts the processes together; see `hpctrain.ops.sync_norm`.
    **names
        All else is as for `BatchNorm`.

    Notes
    -----
    All of them must apply their layers in one order, and equally often. The running statistics
    follow those of the whole batch, so they are the same on all.
    """

    def __init__(
        self,
        in_channels: int = 0,
        num_devices: int | None = None,
        combine: Combiner = ALONE,
        **names: Any,
    ) -> None:
        super().__init__(in_channels=in_channels, **names)
        self._combine = combine


def convert_sync_batch_norm(net: Block, combine: Combiner | None) -> int:
    """Synchronise all `BatchNorm` layers of a model, in place; return how many there are.

    Parameters
    ----------
    net : Block
        Its parameters, and their names, stay as they are.
    combine : callable
        See `BatchNorm.synchronise`.
    """
    found: set[int] = set()  # a block may have several parents

    def convert(block: Block) -> None:
        if isinstance(block, BatchNorm):
            block.synchronise(combine)
            found.add(id(block))
        block._changed()  # what was captured has the layers as they were

    net.apply(convert)
    return len(found)


class LayerNorm(HybridBlock):
    """Normalise each position by mean and variance over its channels, the last axis.

    Parameters
    ----------
    epsilon : float
        Added to the variance.
    in_channels : int
        Length of the last axis; 0 leaves it to the first input.

    References
    ----------
    Ba, Kiros and Hinton, "Layer normalization", arXiv 1607.06450 (2016).
    """

    def __init__(self, epsilon: float = 1e-5, in_channels: int = 0, **names: Any) -> None:
        super().__init__(**names)
        self._epsilon = epsilon
        self.gamma = self.params.get("gamma", shape=(in_channels,), init="ones")
        self.beta = self.params.get("beta", shape=(in_channels,), init="zeros")

    def _described(self) -> str:
        return f"{self.gamma.shape[0] or None}"

    def infer_shape(self, x: Any, *args: Any) -> None:
        """Take the number of channels from the input."""
        for _, parameter in self.own_params():
            parameter.complete((x.shape[-1],))

    def forward(self, x: Any, *args: Any) -> Any:
        """Return an array like ``x``."""
        gamma, beta = self.gamma.data(x.device), self.beta.data(x.device)
        return ops.layer_norm(x, gamma, beta, self._epsilon)[0]
