"""Small data, and the command line to run on them."""

import numpy as np
import pytest
from launched import Launch

from hpctrain.io import Field, ShardWriter

FIELDS = [
    Field(name="image", dtype="|u1", shape=(8, 8, 1), role="input", scale=1 / 255),
    Field(name="label", dtype="<i4", role="target"),
]


def digits(rng, count):
    """Images of four kinds, a bright quarter in noise, and which quarter it is."""
    labels = rng.integers(0, 4, count)
    images = rng.integers(0, 120, (count, 8, 8, 1))
    for image, label in zip(images, labels, strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[row : row + 4, column : column + 4] += 135
    return {"image": images.astype(np.uint8), "label": labels.astype(np.int32)}


def write(folder, rng, count, shard_records):
    with ShardWriter(folder, FIELDS, shard_records=shard_records) as writer:
        writer.append(digits(rng, count))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with 100 records in two shards to train on, and 41 to test."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(5)
    write(folder / "train", rng, 100, 60)
    write(folder / "test", rng, 41, 60)
    return folder


@pytest.fixture
def hpctrain(tmp_path):
    """Start ``hpctrain(ranks, *words, **environment)``; ``folder`` holds what it leaves."""

    launches = []

    def start(ranks, *words, folder=tmp_path, **env):
        launches.append(Launch(folder, ranks, [str(word) for word in words], env))
        return launches[-1]

    yield start
    for launch in launches:
        if not launch.process.stdout.closed:  # a test that failed before its end
            launch.kill()


SETTINGS = """\
run = {epochs = 3, log_every = 1}
model = {name = "mlp", args = {inputs = 64, hidden = [8], classes = 4}}
data = {train = "DATA/train", test = "DATA/test", batch = 16, test_batch = 9}
"""


@pytest.fixture
def train(hpctrain, data):
    """Start a training of 3 epochs of 7 steps: ``train(ranks, *words, **settings)``."""
    file = data / "run.toml"
    file.write_text(SETTINGS.replace("DATA", str(data)))

    def start(ranks, *words, folder=None, env=None, **settings):
        flags = [
            word
            for name, value in settings.items()
            for word in (f"--{name.replace('__', '.')}", value)
        ]
        place = {} if folder is None else {"folder": folder}
        return hpctrain(ranks, "train", file, *words, *flags, **place, **(env or {}))

    return start
