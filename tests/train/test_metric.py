"""Each metric equals its formula over the whole set, however that is cut."""

import math

import numpy as np
import pytest

from hpctrain.errors import ConfigError, DataError, ShapeError
from hpctrain.train.metric import (
    MAE,
    MSE,
    RMSE,
    Accuracy,
    CrossEntropy,
    Custom,
    Loss,
    Perplexity,
    TopK,
)

pytestmark = pytest.mark.serial

N, CLASSES = 103, 7
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(N, CLASSES)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, N)
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
TARGETS = RNG.normal(size=(N, 3))
GUESSES = TARGETS + RNG.normal(size=(N, 3))
NLL = -np.log(PROBABILITIES[np.arange(N), LABELS].astype(np.float64))

CASES = [
    (Accuracy(), LOGITS, LABELS, np.mean(LOGITS.argmax(1) == LABELS)),
    (Accuracy(), LABELS % 3, LABELS, np.mean(LABELS % 3 == LABELS)),
    (TopK(1), LOGITS, LABELS, np.mean(LOGITS.argmax(1) == LABELS)),
    (TopK(3), LOGITS, LABELS, np.mean((np.argsort(-LOGITS)[:, :3] == LABELS[:, None]).any(1))),
    (TopK(9), LOGITS, LABELS, 1.0),
    (MSE(), GUESSES, TARGETS, np.mean((GUESSES - TARGETS) ** 2)),
    (RMSE(), GUESSES, TARGETS, np.sqrt(np.mean((GUESSES - TARGETS) ** 2))),
    (MAE(), GUESSES, TARGETS, np.mean(abs(GUESSES - TARGETS))),
    (CrossEntropy(), PROBABILITIES, LABELS, NLL.mean()),
    (CrossEntropy(from_logits=True), LOGITS, LABELS, NLL.mean()),
    (CrossEntropy(ignore_label=2), PROBABILITIES, LABELS, NLL[LABELS != 2].mean()),
    (Perplexity(), PROBABILITIES, LABELS, np.exp(NLL.mean())),
    (Loss(), GUESSES, None, GUESSES.mean()),
    (Custom(lambda labels, outputs: np.mean(outputs > labels)), GUESSES, TARGETS,
     np.mean(GUESSES > TARGETS)),
    (Custom(lambda labels, outputs: (outputs.sum(), 2)), GUESSES, TARGETS, None),
]  # fmt: skip


@pytest.mark.parametrize("batch", [1, 10, N])
@pytest.mark.parametrize(("metric", "outputs", "labels", "expected"), CASES)
def test_the_value_is_that_of_the_whole_set(metric, outputs, labels, expected, batch):
    metric.reset()
    for first in range(0, N, batch):
        part = slice(first, first + batch)
        metric.update(outputs[part], outputs[part] if labels is None else labels[part])
    if expected is None:
        expected = outputs.sum() / (2 * math.ceil(N / batch))
    assert metric.get()[1] == pytest.approx(expected, rel=1e-6)


def test_an_accuracy_is_a_ratio_of_whole_numbers():
    metric = Accuracy()
    metric.update(LOGITS, LABELS)
    assert (metric.total, metric.count) == (np.sum(LOGITS.argmax(1) == LABELS), N)


def test_of_equal_outputs_the_first_counts_as_larger():
    outputs = np.zeros((4, 4))
    for k in (1, 2, 3):
        metric = TopK(k)
        metric.update(outputs, np.arange(4))
        assert metric.total == k


def test_an_output_that_is_no_number_is_no_hit():
    metric = TopK(1)
    metric.update(np.full((2, 3), np.nan), np.array([0, 1]))
    assert metric.value() == 0


def test_the_classes_may_run_along_another_axis():
    outputs = RNG.normal(size=(5, CLASSES, 4))
    labels = RNG.integers(0, CLASSES, (5, 4))
    metric = Accuracy(axis=1)
    metric.update(outputs, labels)
    assert metric.value() == np.mean(outputs.argmax(1) == labels)


def test_large_logits_do_not_overflow():
    metric = CrossEntropy(from_logits=True)
    metric.update(np.array([[1e4, 0.0]]), np.array([1]))
    assert metric.value() == 1e4


def test_a_hopeless_model_has_infinite_perplexity():
    metric = Perplexity(from_logits=True)
    metric.update(np.array([[1e4, 0.0]]), np.array([1]))
    assert metric.value() == math.inf


@pytest.mark.parametrize("metric", [Accuracy(), CrossEntropy(from_logits=True), MSE(), TopK()])
def test_before_the_first_record_the_value_is_not_a_number(metric):
    assert math.isnan(metric.get()[1])
    empty = np.empty((0, 3))
    metric.update(empty, empty if metric.name == "mse" else np.empty(0, int))
    assert math.isnan(metric.get()[1])


def test_a_scalar_from_a_function_of_an_array_subclass_is_taken():
    assert Custom(lambda labels, outputs: 1, "mine").name == "mine"


@pytest.mark.parametrize(
    ("metric", "outputs", "labels"),
    [
        (Accuracy(), np.ones((3, 2)), np.ones(4)),
        (TopK(), np.ones(3), np.ones(3)),
        (CrossEntropy(), np.ones((3, 2)), np.ones((3, 1))),
        (MSE(), np.ones((3, 1)), np.ones(3)),
        (Accuracy(), [np.ones((3, 2))], [np.ones(3)]),
    ],
)
def test_shapes_that_do_not_fit_are_refused(metric, outputs, labels):
    with pytest.raises(ShapeError):
        metric.update(outputs, labels)


@pytest.mark.parametrize("metric", [TopK(), CrossEntropy()])
@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_that_is_no_class_is_refused(metric, label):
    with pytest.raises(DataError, match="needed 0 to 1"):
        metric.update(np.ones((1, 2)), np.array([label]))


def test_top_none_is_refused():
    with pytest.raises(ConfigError):
        TopK(0)
