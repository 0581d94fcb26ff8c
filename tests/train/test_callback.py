"""Callbacks: what they log, and when."""

import logging

import numpy as np
import pytest

from hpctrain import symbol as sym
from hpctrain.autograd import Tensor
from hpctrain.train import callback
from hpctrain.train.callback import BatchEndParam
from hpctrain.train.metrics import Accuracy, MetricSet
from hpctrain.train.params import load_checkpoint

pytestmark = pytest.mark.serial


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def metric():
    made = Accuracy()
    made.add(3, 4)
    return made


def batches(function, count, metric, epochs=1):
    for epoch in range(epochs):
        for number in range(count):
            function(BatchEndParam(epoch, number, metric, {}))


def test_the_speedometer_speaks_every_so_many_batches(lines, metric):
    batches(callback.Speedometer(32, 2, auto_reset=False), 5, metric, epochs=2)

    heads = [line.partition("\tSpeed")[0] for line in lines()]
    assert heads == [f"Epoch[{e}] Batch [{b}-{b + 2}]" for e in (0, 1) for b in (0, 2)]
    assert all(line.endswith(" samples/sec\taccuracy=0.750000") for line in lines())


def test_the_speedometer_measures_samples_per_second(lines, metric, monkeypatch):
    now = iter([10.0, 12.0, 12.0])
    monkeypatch.setattr(callback.time, "perf_counter", lambda: next(now))
    batches(callback.Speedometer(32, 4), 5, metric)

    assert "Speed: 64.00 samples/sec" in lines()[0]


def test_the_speedometer_starts_the_metric_anew(metric):
    batches(callback.Speedometer(32, 2), 3, metric)

    assert metric.count == 0


def test_a_speedometer_without_a_metric_speaks_too(lines):
    batches(callback.Speedometer(32, 1), 2, None)

    assert lines()[0].endswith("samples/sec")


def test_metrics_are_logged_by_period(lines):
    made = MetricSet([Accuracy()])
    made.metrics[0].add(1, 2)
    batches(callback.log_train_metric(2, auto_reset=True), 3, made)

    assert lines() == [
        "Iter[0] Batch[0] Train-accuracy=0.500000", "Iter[0] Batch[2] Train-accuracy=nan",
    ]  # fmt: skip


def test_validation_is_logged(lines, metric):
    callback.LogValidationMetricsCallback()(BatchEndParam(3, 0, metric, {}))

    assert lines() == ["Epoch[3] Validation-accuracy=0.750000"]


def test_the_bar_fills(capsys, metric):
    batches(callback.ProgressBar(4, length=8), 5, metric)

    frames = capsys.readouterr().out.split("\r")
    assert (frames[0], frames[2], frames[4]) == (
        "[--------] 0%", "[====----] 50%", "[========] 100%",
    )  # fmt: skip


def test_checkpoints_come_by_period_and_carry_the_next_number(tmp_path):
    symbol = sym.FullyConnected(sym.var("data"), num_hidden=2, name="fc")
    save = callback.do_checkpoint(tmp_path / "m", 2)
    for epoch in range(4):
        save(epoch, symbol, {"w": Tensor(np.full(2, epoch))}, {"s": Tensor(np.ones(1))})

    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["m-0002.params", "m-0004.params", "m-symbol.json"]
    loaded, args, aux = load_checkpoint(tmp_path / "m", 4)
    assert loaded.tojson() == symbol.tojson()
    assert (args["w"].asnumpy().tolist(), aux["s"].asnumpy().tolist()) == ([3, 3], [1])


def test_a_module_writes_its_own_checkpoint():
    calls = []

    class Recorder:
        def save_checkpoint(self, *args):
            calls.append(args)

    save = callback.module_checkpoint(Recorder(), "m", 2, save_optimizer_states=True)
    for epoch in range(3):
        save(epoch)

    assert calls == [("m", 2, True)]
