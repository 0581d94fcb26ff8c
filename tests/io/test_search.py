"""Where a value stands in the files."""

import numpy as np
import pytest

from hpctrain.io import Field, ShardWriter, open_records
from hpctrain.io.search import holders

pytestmark = pytest.mark.serial
FIELDS = [
    Field(name="image", dtype="|u1", shape=(4,), scale=0.5),
    Field(name="words", dtype="<i8", shape=(3,)),
    Field(name="label", dtype="<i4", role="target"),
]


@pytest.fixture
def records(tmp_path):
    """Ten records in shards of four: words count up, labels are 0 and 1 in turn."""
    with ShardWriter(tmp_path / "set", FIELDS, shard_records=4) as writer:
        images, words = np.full((10, 4), 7, "u1"), np.arange(30).reshape(10, 3)
        writer.append({"image": images, "words": words, "label": np.arange(10, dtype="i4") % 2})
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
    assert holders([records], 17, limit_s=-1.0) == []
