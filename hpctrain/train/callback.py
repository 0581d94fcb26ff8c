"""What a module tells during training, in MXNet's words.

A batch callback takes a `BatchEndParam`; an epoch callback takes (epoch, symbol, arg_params,
aux_params). They are called on every rank: give them to one rank where one is to speak.
"""

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hpctrain.train.params import save_checkpoint

__all__ = [
    "BatchEndParam", "LogValidationMetricsCallback", "ProgressBar", "Speedometer",
    "do_checkpoint", "log_train_metric", "module_checkpoint",
]  # fmt: skip

_LOG = logging.getLogger("hpctrain.callback")


class BatchEndParam(NamedTuple):
    """What a batch callback is told: ``nbatch`` counts from 0, ``locals`` are the loop's."""

    epoch: int
    nbatch: int
    eval_metric: Any
    locals: Any


def _values(metric: Any) -> list[tuple[str, float]]:
    """Return names and values of a metric or a set of them."""
    name, value = metric.get()
    if isinstance(name, list):
        return list(zip(name, value, strict=True))
    return [(name, value)]


class Speedometer:
    """Log the samples per second of this rank, and the metric, every ``frequent`` batches.

    Parameters
    ----------
    batch_size : int
        Rows of a batch on this rank.
    frequent : int
    auto_reset : bool
        Whether the metric starts anew after each line.
    """

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        self.batch_size, self.frequent, self.auto_reset = batch_size, frequent, auto_reset
        self._since: float | None = None
        self._last = 0

    def __call__(self, param: BatchEndParam) -> None:
        """Take note of a batch."""
        count = param.nbatch
        if count < self._last or self._since is None:  # another epoch
            self._since, self._last = time.perf_counter(), count
            return
        self._last = count
        if count % self.frequent:
            return
        elapsed = time.perf_counter() - self._since
        speed = self.frequent * self.batch_size / max(elapsed, 1e-9)
        shown = "".join(f"\t{n}={v:f}" for n, v in _values(param.eval_metric or _Nothing()))
        _LOG.info(
            "Epoch[%d] Batch [%d-%d]\tSpeed: %.2f samples/sec%s",
            param.epoch, count - self.frequent, count, speed, shown,
        )  # fmt: skip
        if self.auto_reset and param.eval_metric is not None:
            param.eval_metric.reset()
        self._since = time.perf_counter()


class _Nothing:
    def get(self) -> tuple[list[str], list[float]]:
        return [], []


class ProgressBar:
    """Draw a bar on standard output that fills in ``total`` batches.

    Parameters
    ----------
    total : int
        Batches of an epoch.
    length : int
        Of the bar.
    """

    def __init__(self, total: int, length: int = 80) -> None:
        self.total, self.length = total, length

    def __call__(self, param: BatchEndParam) -> None:
        """Draw the bar for ``nbatch`` of ``total``."""
        done = min(1.0, param.nbatch / max(1, self.total))
        filled = round(self.length * done)
        bar = "=" * filled + "-" * (self.length - filled)
        sys.stdout.write(f"[{bar}] {done:.0%}\r")
        sys.stdout.flush()


class LogValidationMetricsCallback:
    """Log the metric at the end of an evaluation."""

    def __call__(self, param: BatchEndParam) -> None:
        """Log each value."""
        for name, value in _values(param.eval_metric):
            _LOG.info("Epoch[%d] Validation-%s=%f", param.epoch, name, value)


def log_train_metric(period: int, auto_reset: bool = False) -> Callable[[BatchEndParam], None]:
    """Return a callback that logs the metric every ``period`` batches."""

    def callback(param: BatchEndParam) -> None:
        if param.nbatch % period == 0 and param.eval_metric is not None:
            for name, value in _values(param.eval_metric):
                _LOG.info(
                    "Iter[%d] Batch[%d] Train-%s=%f", param.epoch, param.nbatch, name, value
                )
            if auto_reset:
                param.eval_metric.reset()

    return callback


def do_checkpoint(prefix: str | Path, period: int = 1) -> Callable[..., None]:
    """Return a callback that writes a checkpoint every ``period`` epochs.

    The file after epoch 0 is ``prefix-0001.params``.
    """
    period = max(1, period)

    def callback(epoch: int, symbol: Any, arg_params: Any, aux_params: Any) -> None:
        if (epoch + 1) % period == 0:
            save_checkpoint(prefix, epoch + 1, symbol, arg_params, aux_params)

    return callback


def module_checkpoint(
    module: Any, prefix: str | Path, period: int = 1, save_optimizer_states: bool = False
) -> Callable[..., None]:
    """Return a callback that lets ``module`` write a checkpoint every ``period`` epochs."""
    period = max(1, period)

    def callback(epoch: int, *_: Any) -> None:
        if (epoch + 1) % period == 0:
            module.save_checkpoint(prefix, epoch + 1, save_optimizer_states)

    return callback
