"""The encoder-decoder on the command line: sequences of unequal length, padded in the file."""

import json

import numpy as np
import pytest

from hpctrain.io import Field, ShardWriter
from hpctrain.models import shifted

pytestmark = [pytest.mark.serial, pytest.mark.slow]

STEPS, VOCAB = 5, 8
FIELDS = [
    Field(name="source", dtype="<i4", shape=(STEPS,), role="input"),
    Field(name="length", dtype="<i4", role="input"),
    Field(name="before", dtype="<i4", shape=(STEPS + 1,), role="input"),
    Field(name="label", dtype="<i4", shape=(STEPS + 1,), role="target"),
]
FILE = """\
run = {epochs = 6}
model = {name = "seq2seq", args = {vocab = 8, width = 24, layers = 1}}
loss = {name = "masked_softmax_cross_entropy"}
optim = {name = "adam", lr = 0.02}
data = {train = "DATA/train", test = "DATA/test", batch = 48, test_batch = 50}
"""


def copies(rng, count):
    """Sequences to be copied, 1 behind them."""
    lengths = rng.integers(2, STEPS + 1, count)
    source = np.zeros((count, STEPS), np.int32)
    labels = np.full((count, STEPS + 1), -1, np.int32)
    for row, length in enumerate(lengths):
        source[row, :length] = labels[row, :length] = rng.integers(2, VOCAB, length)
        labels[row, length] = 1
    return {
        "source": source, "length": lengths.astype(np.int32),
        "before": shifted(labels, 0).astype(np.int32), "label": labels,
    }  # fmt: skip


def test_ranks_train_it_alike(hpctrain, tmp_path):
    rng = np.random.default_rng(3)
    for name, count in (("train", 1500), ("test", 90)):
        with ShardWriter(tmp_path / name, FIELDS, shard_records=1000) as writer:
            writer.append(copies(rng, count))
    file = tmp_path / "run.toml"
    file.write_text(FILE.replace("DATA", str(tmp_path)))
    found = []

    for ranks in (1, 3):
        ended = hpctrain(ranks, "train", file, "--run.name", f"on{ranks}").end()
        assert (ended.code, ended.err) == (0, "")
        found.append(json.loads((tmp_path / f"runs/on{ranks}/done.json").read_text()))

    assert found[0]["test_accuracy"] > 0.95
    assert found[0]["train_loss"] == pytest.approx(found[1]["train_loss"], 1e-2)
