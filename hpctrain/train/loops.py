"""The loops of a module: fit, score, predict, in MXNet's order.

What is logged about an epoch counts every real row of it once: padding is left out, rows of
all ranks are added, and a `Speedometer` that starts the metric anew takes nothing away.
"""

import copy
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from hpctrain import ops
from hpctrain.io import DataBatch, DataIter
from hpctrain.train import metrics
from hpctrain.train.callback import BatchEndParam
from hpctrain.train.metrics import MetricSet
from hpctrain.train.values import real_rows

__all__ = ["Loops"]

_LOG = logging.getLogger("hpctrain.module")

Callbacks = Callable[..., Any] | Sequence[Callable[..., Any]] | None


class Loops(ABC):
    """What can be done with anything that binds, computes and updates."""

    symbol: Any
    _places: Any = None  # where groups are, if they are on several ranks

    @abstractmethod
    def bind(self, data_shapes: Any, label_shapes: Any = None, **options: Any) -> None:
        """Make room for batches of these shapes."""

    @abstractmethod
    def init_params(self, initializer: Any = None, **options: Any) -> None:
        """Give parameters and state their first values."""

    @abstractmethod
    def init_optimizer(
        self, kvstore: Any = "local", optimizer: Any = "sgd", optimizer_params: Any = (),
        force_init: bool = False,
    ) -> None:  # fmt: skip
        """Make the optimizer and the store of the parameters."""

    @abstractmethod
    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        """Compute the outputs of a batch."""

    @abstractmethod
    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients of the last batch."""

    @abstractmethod
    def update(self) -> None:
        """Update the parameters by the gradients."""

    @abstractmethod
    def get_outputs(self) -> list[Any]:
        """Return the outputs of the last batch."""

    @abstractmethod
    def update_metric(self, eval_metric: Any, labels: Sequence[Any]) -> None:
        """Add the last batch to a metric."""

    @abstractmethod
    def get_params(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return parameters and state."""

    @abstractmethod
    def end_epoch(self) -> None:
        """Let devices and ranks agree on the state; collective."""

    @abstractmethod
    def add_ranks(self, sums: np.ndarray) -> None:
        """Sum an array of float64 over the ranks in place; collective."""

    def forward_backward(self, data_batch: DataBatch) -> None:
        """Compute outputs and gradients of a batch."""
        self.forward(data_batch, is_train=True)
        self.backward()

    def fit(  # noqa: PLR0913 (MXNet's signature)
        self,
        train_data: DataIter,
        eval_data: DataIter | None = None,
        eval_metric: Any = "acc",
        epoch_end_callback: Callbacks = None,
        batch_end_callback: Callbacks = None,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        eval_end_callback: Callbacks = None,
        eval_batch_end_callback: Callbacks = None,
        initializer: Any = None,
        arg_params: Any = None,
        aux_params: Any = None,
        allow_missing: bool = False,
        force_rebind: bool = False,
        force_init: bool = False,
        begin_epoch: int = 0,
        num_epoch: int | None = None,
        validation_metric: Any = None,
        stall_s: float = 60.0,
        abort_s: float = 0.0,
    ) -> None:
        """Train for ``num_epoch - begin_epoch`` epochs.

        Parameters
        ----------
        train_data, eval_data : DataIter
            On several ranks with a ``dist`` store: this rank's part.
        eval_metric, validation_metric : str, Metric, or a sequence of these
            See `hpctrain.train.metrics.create`; the second is the first if None.
        epoch_end_callback : callable ``(epoch, symbol, arg_params, aux_params)``
        batch_end_callback, eval_batch_end_callback, eval_end_callback : callable
            ``(BatchEndParam)``. Each may be a list.
        kvstore : str, KVStore or None
        optimizer : str, Optimizer or Updater
        optimizer_params : mapping, or pairs
            ``rescale_grad`` is one over the rows of a batch on all ranks, if not given.
        initializer, arg_params, aux_params, allow_missing, force_init
            See ``init_params``.
        force_rebind : bool
        begin_epoch, num_epoch : int
        stall_s, abort_s : float, s
            Where groups are on ranks: when to say which rank keeps others waiting, and with
            what, and when to end all; 0: never.
        """
        assert num_epoch is not None, "fit: give num_epoch"
        self.bind(train_data.provide_data, train_data.provide_label, force_rebind=force_rebind)
        self.init_params(
            initializer, arg_params=arg_params, aux_params=aux_params,
            allow_missing=allow_missing, force_init=force_init,
        )  # fmt: skip
        self.init_optimizer(kvstore, optimizer, optimizer_params)
        metric = _metric_set(eval_metric)
        validation = metric if validation_metric is None else _metric_set(validation_metric)
        places = self._places
        with nullcontext() if places is None else places.watched(stall_s, abort_s):
            for epoch in range(begin_epoch, num_epoch):
                start = time.perf_counter()
                totals = self._train(train_data, metric, epoch, batch_end_callback)
                for name, value in self._exact(metric, totals):
                    _LOG.info("Epoch[%d] Train-%s=%f", epoch, name, value)
                _LOG.info("Epoch[%d] Time cost=%.3f", epoch, time.perf_counter() - start)
                self.end_epoch()
                callbacks = _listed(epoch_end_callback)
                # Parameters of other ranks come from all of them, whoever has asked.
                asked = bool(callbacks) if self._places is None else self._places.any(callbacks)
                params = self.get_params() if asked else ()
                for callback in callbacks:
                    callback(epoch, self.symbol, *params)
                if eval_data is not None:
                    found = self.score(
                        eval_data, validation, batch_end_callback=eval_batch_end_callback,
                        score_end_callback=eval_end_callback, epoch=epoch,
                    )  # fmt: skip
                    for name, value in found:
                        _LOG.info("Epoch[%d] Validation-%s=%f", epoch, name, value)
                train_data.reset()

    def _train(
        self, data: DataIter, metric: MetricSet, epoch: int, callbacks: Callbacks
    ) -> np.ndarray:
        """Make one epoch's updates; return the sums of the metric over all of it."""
        metric.reset()
        totals = metric.vector()
        batches = iter(data)
        following = next(batches, None)
        number = 0
        while following is not None:
            batch, before = following, metric.vector()
            self.forward_backward(batch)
            self.update()
            self.update_metric(metric, batch.label)
            totals += metric.vector() - before
            following = next(batches, None)
            _call(callbacks, BatchEndParam(epoch, number, metric, locals()))
            number += 1
        return totals

    def _exact(self, metric: MetricSet, totals: np.ndarray) -> list[tuple[str, float]]:
        """Return names and values from sums, added over the ranks."""
        self.add_ranks(totals)
        return list(copy.deepcopy(metric).from_vector(totals).values().items())

    def score(  # noqa: PLR0913 (MXNet's signature)
        self,
        eval_data: DataIter,
        eval_metric: Any,
        num_batch: int | None = None,
        batch_end_callback: Callbacks = None,
        score_end_callback: Callbacks = None,
        reset: bool = True,
        epoch: int = 0,
    ) -> list[tuple[str, float]]:
        """Return a metric over data: the same numbers on every rank, each real row once.

        Parameters
        ----------
        eval_data : DataIter
            On several ranks with a ``dist`` store: this rank's part; then collective.
        eval_metric : str, Metric, or a sequence of these
        num_batch : int, optional
            The most batches to look at.
        batch_end_callback, score_end_callback : callable ``(BatchEndParam)``
        reset : bool
            Whether to begin ``eval_data`` anew before.
        epoch : int
            For the callbacks.

        Returns
        -------
        list of (str, float)
        """
        if reset:
            eval_data.reset()
        metric = _metric_set(eval_metric)
        metric.reset()
        number = 0
        for number, batch in enumerate(_limited(eval_data, num_batch), 1):
            self.forward(batch, is_train=False)
            self.update_metric(metric, batch.label)
            _call(batch_end_callback, BatchEndParam(epoch, number - 1, metric, locals()))
        sums = metric.vector()
        self.add_ranks(sums)
        metric.from_vector(sums)
        _call(score_end_callback, BatchEndParam(epoch, number, metric, locals()))
        return list(metric.values().items())

    def predict(
        self,
        eval_data: DataIter,
        num_batch: int | None = None,
        merge_batches: bool = True,
        reset: bool = True,
        always_output_list: bool = False,
    ) -> Any:
        """Return the outputs for data, without those of padding.

        Returns
        -------
        Tensor or list of Tensor
            One for each output, of all batches; a list for each batch without
            ``merge_batches``.
        """
        if reset:
            eval_data.reset()
        found = []
        for batch in _limited(eval_data, num_batch):
            self.forward(batch, is_train=False)
            found.append([real_rows(out, batch) for out in self.get_outputs()])
        if not merge_batches or not found:
            return found
        merged = [ops.concat(list(column)) for column in zip(*found, strict=True)]
        return merged[0] if len(merged) == 1 and not always_output_list else merged


def _metric_set(metric: Any) -> MetricSet:
    made = metrics.create(metric)
    return made if isinstance(made, MetricSet) else MetricSet([made])


def _listed(callbacks: Callbacks) -> list[Callable[..., Any]]:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]  # type: ignore[list-item]


def _call(callbacks: Callbacks, param: BatchEndParam) -> None:
    for callback in _listed(callbacks):
        callback(param)


def _limited(data: DataIter, most: int | None) -> Iterator[DataBatch]:
    for number, batch in enumerate(data):
        if number == most:
            return
        yield batch
