"""Where a value stands in the files."""

import h5py
import numpy as np
import pytest

from hpctrain.io import Field, ShardWriter, open_records
from hpctrain.io.search import holders, not_finite

pytestmark = pytest.mark.serial
FIELDS = [
    Field(name="image", dtype="|u1", shape=(4,), scale=0.5),
    Field(name="words", dtype="<i8", shape=(3,)),
    Field(name="heat", dtype="<f4", shape=(2,)),
    Field(name="label", dtype="<i4", role="target"),
]


@pytest.fixture
def records(tmp_path):
    """Ten records in shards of four: words count up, labels are 0 and 1 in turn."""
    with ShardWriter(tmp_path / "set", FIELDS, shard_records=4) as writer:
        images, words = np.full((10, 4), 7, "u1"), np.arange(30).reshape(10, 3)
        heat, label = np.ones((10, 2), "f4"), np.arange(10, dtype="i4") % 2
        heat[6:8, 1] = np.nan, np.inf
        writer.append({"image": images, "words": words, "heat": heat, "label": label})
    with open_records(tmp_path / "set") as found:
        yield found


def places(found):
    return [(path.name, number, field) for path, number, field in found]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (17, [("shard-00001.h5", 1, "words")]),
        (1, [("shard-00000.h5", 0, "words"), ("shard-00000.h5", 1, "label")]),
        (29, [("shard-00002.h5", 1, "words")]),
        (31, []),
    ],
)
def test_the_first_record_of_each_field_is_found_by_its_number_in_the_file(
    records, value, expected
):
    assert places(holders([records, records], value)) == expected


def test_numbers_that_are_scaled_are_no_indices(records):
    assert places(holders([records], 7)) == [("shard-00000.h5", 2, "words")]


def test_a_set_that_is_far_too_large_is_given_up(records):
    assert holders([records], 17, limit=24 * 5) == []
    assert places(holders([records], 17, limit=24 * 6)) == [("shard-00001.h5", 1, "words")]


def test_the_first_number_that_is_not_finite_is_found(records):
    assert places(not_finite([records])) == [("shard-00001.h5", 2, "heat")]


def test_classes_that_are_stored_as_floats_count(tmp_path):
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["x"], file["y"] = np.full(4, 3.0), np.array([0.0, 1.0, 3.0, 1.0])
    with open_records(tmp_path / "own.h5", inputs=["x"], targets=["y"]) as records:
        assert places(holders([records], 3)) == [("own.h5", 2, "y")]
