"""The encoder-decoder on the command line: sequences of unequal length, padded in the file."""

import json

import numpy as np
import pytest

from hpctrain.io import Field, ShardWriter
from hpctrain.models import shifted
from hpctrain.train import checkpoint

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


@pytest.fixture
def write(tmp_path):
    """Write the data and a file of settings with changes: ``write(records, [(old, new)])``."""

    def write_(records, changes=()):
        rng = np.random.default_rng(3)
        for name, count in (("train", records), ("test", 90)):
            with ShardWriter(tmp_path / name, FIELDS, shard_records=1000) as writer:
                writer.append(copies(rng, count))
        text = FILE.replace("DATA", str(tmp_path))
        for old, new in changes:
            text = text.replace(old, new)
        file = tmp_path / "run.toml"
        file.write_text(text)
        return file

    return write_


def test_ranks_train_it_alike(hpctrain, tmp_path, write):
    file, found = write(1500), []

    for ranks in (1, 3):
        ended = hpctrain(ranks, "train", file, "--run.name", f"on{ranks}").end()
        assert (ended.code, ended.err) == (0, "")
        found.append(json.loads((tmp_path / f"runs/on{ranks}/done.json").read_text()))

    assert found[0]["test_accuracy"] > 0.95
    assert found[0]["train_loss"] == pytest.approx(found[1]["train_loss"], 1e-2)


def test_runs_whose_tables_travel_by_rows_end_as_one_by_allreduce(hpctrain, tmp_path, write):
    """Broken off, and gone on with by two servers, whose parts of the rows are others."""
    changes = [("vocab = 8", "vocab = 2000"), ("epochs = 6", "epochs = 1")]
    file = write(300, changes)
    served = ("--exchange.kind", "server", "--exchange.path", "direct")
    forms = [
        (2, "whole", 7, "never", ()),
        (3, "begun", 3, "never", served),
        (4, "ended", 7, tmp_path / f"runs/begun/checkpoints/step-{3:08d}",
         (*served, "--exchange.servers", "2")),
    ]  # fmt: skip
    found = []
    for ranks, name, steps, path, more in forms:
        ended = hpctrain(
            ranks, "train", file, "--run.name", name, "--run.max_steps", str(steps),
            "--run.resume", str(path), *more,
        ).end()  # fmt: skip
        assert (ended.code, ended.err) == (0, "")
        found.append(checkpoint.load(tmp_path / f"runs/{name}/checkpoints/step-{steps:08d}")[0])

    assert list(found[2]) == list(found[0])
    for name, array in found[0].items():
        np.testing.assert_allclose(found[2][name], array, rtol=1e-4, atol=1e-5, err_msg=name)
