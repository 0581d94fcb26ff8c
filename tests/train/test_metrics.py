"""Vectors of sets add over ranks; names make metrics; records are whole lines."""

import json

import numpy as np
import pytest
from mpi4py import MPI

from hpctrain.errors import ConfigError, ShapeError
from hpctrain.train.metrics import (
    MSE,
    Accuracy,
    CrossEntropy,
    Loss,
    MetricSet,
    RecordWriter,
    TopK,
    create,
)


def test_the_value_over_unequal_shares_of_ranks_is_that_of_the_whole_set():
    world = MPI.COMM_WORLD
    rng = np.random.default_rng(0)
    outputs, labels = rng.normal(size=(101, 5)), rng.integers(0, 5, 101)
    cuts = np.linspace(0, 1, world.size + 1) ** 2 * 101
    mine = slice(int(cuts[world.rank]), int(cuts[world.rank + 1]))
    metrics = MetricSet([Accuracy(), TopK(2), CrossEntropy(from_logits=True)])
    whole = MetricSet([Accuracy(), TopK(2), CrossEntropy(from_logits=True)])

    metrics.update(outputs[mine], labels[mine])
    vector = metrics.vector()
    world.Allreduce(MPI.IN_PLACE, vector)
    metrics.from_vector(vector)

    whole.update(outputs, labels)
    assert metrics.values()["accuracy"] == whole.values()["accuracy"]
    assert metrics.values() == pytest.approx(whole.values(), rel=1e-12)


@pytest.mark.serial
def test_a_vector_restores_sums_and_counts():
    metrics = MetricSet([Accuracy(), Loss()])
    metrics.metrics[0].add(3, 4)
    metrics.metrics[1].add(0.5, 8)
    vector = metrics.vector()
    assert vector.tolist() == [3, 4, 0.5, 8]
    metrics.reset()
    assert metrics.vector().tolist() == [0, 0, 0, 0]
    assert metrics.from_vector(vector).get() == (["accuracy", "loss"], [0.75, 0.0625])


@pytest.mark.serial
def test_the_vector_of_another_set_is_refused():
    with pytest.raises(ShapeError, match=r"needed \(2,\)"):
        MetricSet([Accuracy()]).from_vector(np.zeros(4))


@pytest.mark.serial
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("acc", {}, "accuracy"),
        ("Accuracy", {}, "accuracy"),
        ("mse", {}, "mse"),
        ("ce", {"eps": 1e-9}, "cross-entropy"),
        ("perplexity", {"ignore_label": 0}, "perplexity"),
        ("top_k_accuracy", {"top_k": 3}, "top_k_accuracy_3"),
    ],
)
def test_a_name_makes_a_metric(name, options, expected):
    assert create(name, **options).get()[0] == expected


@pytest.mark.serial
def test_functions_and_sequences_make_metrics_and_sets():
    def half(labels, outputs):
        return 0.5

    metrics = create(["acc", half, [MSE()], create(["mae"])])
    assert [metric.name for metric in metrics.metrics] == ["accuracy", "half", "mse", "mae"]
    assert create(metrics) is metrics


@pytest.mark.serial
@pytest.mark.parametrize(("name", "options"), [("f9", {}), ("acc", {"top_k": 3})])
def test_an_unknown_name_or_option_is_refused(name, options):
    with pytest.raises(ConfigError, match="metric"):
        create(name, **options)


@pytest.mark.serial
def test_records_are_appended_as_lines_and_readable_at_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step":0}\n')
    with RecordWriter(path) as writer:
        writer.write({"step": 1, "loss": np.float32(0.5), "bad": float("nan")})
        lines = path.read_text().splitlines()
        assert json.loads(lines[1]) == {"step": 1, "loss": 0.5, "bad": None}
        writer.write({"step": np.int64(2)})
    assert path.read_text().splitlines()[2] == '{"step":2}'


@pytest.mark.serial
def test_a_record_of_something_else_is_refused(tmp_path):
    with RecordWriter(tmp_path / "x") as writer, pytest.raises(TypeError, match="object"):
        writer.write({"x": object()})
