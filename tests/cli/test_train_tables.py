"""Runs of a model with a table of words, of which only rows travel."""

import numpy as np
import pytest

from hpctrain.io import Field, ShardWriter
from hpctrain.train import checkpoint

pytestmark = [pytest.mark.serial, pytest.mark.slow]

WORDS, RECORDS = 5000, 140
FIELDS = [
    Field(name="words", dtype="<i4", shape=(3,), role="input"),
    Field(name="label", dtype="<i4", role="target"),
]
FILE = """\
run = {epochs = 1}
model = {name = "wordy:build", args = {classes = 4}}
optim = {name = "adam", lr = 0.02}
data = {train = "DATA/train", test = "DATA/train", batch = 20}
"""
SERVED = ("--exchange.kind", "server", "--exchange.path", "direct")


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(3)
    words = rng.integers(0, WORDS, (RECORDS, 3))
    classes = (words[:, 0] % 4).astype(np.int32)
    with ShardWriter(tmp_path / "train", FIELDS, shard_records=1000) as writer:
        writer.append({"words": words.astype(np.int32), "label": classes})
    path = tmp_path / "run.toml"
    path.write_text(FILE.replace("DATA", str(tmp_path)))
    return path


def test_runs_with_servers_end_as_one_by_allreduce_in_fewer_bytes(hpctrain, tmp_path, file):
    """Broken off, and gone on with by two servers, whose parts of the rows are others."""
    forms = [
        (2, "whole", 7, "never", ()),
        (3, "begun", 3, "never", SERVED),
        (4, "ended", 7, tmp_path / f"runs/begun/checkpoints/step-{3:08d}",
         (*SERVED, "--exchange.servers", "2")),
    ]  # fmt: skip
    found = []
    for ranks, name, steps, path, more in forms:
        ended = hpctrain(
            ranks, "train", file, "--run.name", name, "--run.max_steps", str(steps),
            "--run.resume", str(path), *more,
        ).end()  # fmt: skip
        assert (ended.code, ended.err) == (0, ""), ended.err
        found.append(checkpoint.load(tmp_path / f"runs/{name}/checkpoints/step-{steps:08d}")[0])

    assert list(found[2]) == list(found[0])
    for name, array in found[0].items():
        np.testing.assert_allclose(found[2][name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    # Gradients of rows go there, rows come back, and once, at the end, all of them.
    table = WORDS * 8 * 4
    sent = [int((tmp_path / f"sent-{rank}").read_text()) for rank in range(4)]
    assert max(sent[2:]) < 4 * table / 10
    assert max(sent[:2]) < 2 * table / 2 + 4 * table / 10
