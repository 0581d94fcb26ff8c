"""A small data set in shards, and the arrays that it was made from."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpctrain.io import Field, ShardWriter

FIELDS = (
    Field(name="image", dtype="|u1", shape=(4, 3), scale=0.5, offset=1.0),
    Field(name="wave", dtype=">f4", shape=(5,)),
    Field(name="label", dtype="<i8", role="target"),
)


def arrays(n):
    """Seeded values of n records for each of FIELDS."""
    random = np.random.default_rng(n)
    return {
        "image": random.integers(0, 256, (n, 4, 3)).astype(np.uint8),
        "wave": random.normal(size=(n, 5)).astype(np.float32),
        "label": random.integers(0, 10, n),
    }


def write(folder, n=100, **options):
    """Write n records and return their arrays."""
    made = arrays(n)
    with ShardWriter(folder, FIELDS, **{"shard_records": 40, **options}) as writer:
        for start in range(0, n, 17):
            writer.append({name: array[start : start + 17] for name, array in made.items()})
    return made


@pytest.fixture(params=[None, "gzip", "lzf"], ids=["plain", "gzip", "lzf"])
def compress(request):
    return request.param


@pytest.fixture
def made(tmp_path):
    """Return a folder of 100 records in 3 shards, and their arrays."""
    return tmp_path / "shards", write(tmp_path / "shards")


@pytest.fixture
def data_set():
    """Give the tests this module: FIELDS, arrays and write."""
    return SimpleNamespace(FIELDS=FIELDS, arrays=arrays, write=write)
