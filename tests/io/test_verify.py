"""Damage is found before the run, all of it."""

import h5py
import numpy as np
import pytest

from hpctrain.errors import DataError
from hpctrain.io import open_records, refuse

pytestmark = pytest.mark.serial


def flip(path, place, bit=0):
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def test_good_shards_give_no_sentence(made):
    assert open_records(made[0]).verify() == []


def test_a_flipped_bit_anywhere_is_found(made):
    path = made[0] / "shard-00001.h5"
    good = path.read_bytes()
    records = open_records(made[0])
    random = np.random.default_rng(5)

    for place in random.integers(0, len(good), 60):
        flip(path, int(place), int(random.integers(8)))
        found = records.verify()
        path.write_bytes(good)

        assert len(found) == 1
        assert str(path) in found[0]


@pytest.mark.parametrize("change", [lambda data: data[:-100], lambda data: data + bytes(1000)])
def test_another_size_is_found(made, change):
    path = made[0] / "shard-00002.h5"
    path.write_bytes(change(path.read_bytes()))

    (sentence,) = open_records(made[0]).verify()

    assert "shard-00002.h5: got" in sentence


def test_all_bad_files_are_named_whoever_looks(made):
    records = open_records(made[0])
    flip(made[0] / "shard-00000.h5", 2500)
    (made[0] / "shard-00002.h5").write_bytes(b"")

    for parts in (1, 2, 3, 4):
        found = [line for part in range(parts) for line in records.verify(part, parts)]
        with pytest.raises(DataError) as caught:
            refuse(found)
        assert "shard-00000.h5" in str(caught.value)
        assert "shard-00001.h5" not in str(caught.value)
        assert "shard-00002.h5" in str(caught.value)


def test_files_without_a_manifest_are_decoded(tmp_path):
    for name in "ab":
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=np.ones((100, 9)), chunks=(10, 9), fletcher32=True)
            offset = file["x"].id.get_chunk_info(7).byte_offset
    records = open_records(str(tmp_path / "*.h5"), inputs=["x"])
    assert records.verify() == []

    flip(tmp_path / "b.h5", offset + 5)

    (sentence,) = records.verify()
    assert "b.h5:x: records 0 to 99 cannot be decoded" in sentence
