"""Reading records by number, against slices of the arrays they were made from."""

import h5py
import numpy as np
import pytest

from hpctrain.errors import DataError, ShapeError
from hpctrain.io import Column, open_records

pytestmark = pytest.mark.serial


def expected(made, ids):
    return {
        "image": made["image"][ids].astype(np.float32) * np.float32(0.5) + np.float32(1),
        "wave": made["wave"][ids],
        "label": made["label"][ids],
    }


@pytest.mark.parametrize("ids", [[0, 99, 40, 39, 3, 3], [], list(range(100))], ids=len)
def test_any_numbers_in_any_order_give_their_records(tmp_path, compress, data_set, ids):
    made = data_set.write(tmp_path, compress=compress)
    ids = np.array(ids, np.int64)

    with open_records(tmp_path) as records:
        out = records.buffers(len(ids))
        records.read(ids, out)

    for name, array in expected(made, ids).items():
        np.testing.assert_array_equal(out[name], array)


def test_roles_shapes_and_delivered_types_come_from_the_manifest(made):
    records = open_records(made[0])

    out = records.buffers(2, np.float64)

    assert [field.name for field in records.inputs] == ["image", "wave"]
    assert [field.name for field in records.targets] == ["label"]
    assert {name: a.dtype.name for name, a in out.items()} == {
        "image": "float64", "wave": "float64", "label": "int64",
    }  # fmt: skip


def test_big_endian_gives_native_numbers(made):
    records = open_records(made[0])
    out = {"wave": np.empty((100, 5), np.float32)}

    records.read(np.arange(100), out)

    assert out["wave"].dtype.isnative
    np.testing.assert_array_equal(out["wave"], made[1]["wave"])


def test_packed_integers_keep_their_precision(tmp_path):
    stored = np.array([[2**24 + 1], [2**24 + 3]], np.int32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = stored
    column = Column("x", scale=1.0, offset=-float(2**24))
    records = open_records(tmp_path / "a.h5", inputs=[column])

    out = records.buffers(2)
    records.read(np.arange(2), out)

    np.testing.assert_array_equal(out["x"], [[1], [3]])


def test_the_cache_stays_in_its_budget_and_is_used(tmp_path, data_set):
    made = data_set.write(tmp_path)
    records = open_records(tmp_path, cache_bytes=1500)
    out = {"label": np.empty(100, np.int64), "wave": np.empty((100, 5), np.float32)}

    for ids in (np.arange(100), np.arange(100)[::-1]):
        records.read(ids, out)
        np.testing.assert_array_equal(out["label"], made["label"][ids])
        assert records.cache.held_bytes <= 1500
    before = records.cache.misses
    records.read(np.arange(95, 100), {"wave": np.empty((5, 5), np.float32)})

    assert before > 6  # three shards, two fields: not all fit
    assert records.cache.misses == before  # shard 2 was read last


def test_more_files_than_may_stay_open_are_read(tmp_path):
    for number in range(70):
        with h5py.File(tmp_path / f"{number:03d}.h5", "w") as file:
            file["x"] = np.full((2, 1), number, np.float32)
    records = open_records(str(tmp_path / "*.h5"), inputs=["x"])

    ids = np.random.default_rng(0).permutation(records.n)
    out = records.buffers(records.n)
    records.read(ids, out)

    np.testing.assert_array_equal(out["x"][:, 0], ids // 2)
    assert len(records._files._files) == 64


def test_a_damaged_chunk_is_named_when_it_is_read(made):
    folder, _ = made
    with h5py.File(folder / "shard-00001.h5") as file:
        offset = file["wave"].id.get_chunk_info(0).byte_offset
    with open(folder / "shard-00001.h5", "r+b") as file:
        file.seek(offset + 3)
        byte = file.read(1)[0]
        file.seek(offset + 3)
        file.write(bytes([byte ^ 1]))
    records = open_records(folder)

    with pytest.raises(DataError, match=r"shard-00001.h5:wave: records 0 to 39 cannot"):
        records.read(np.array([50]), {"wave": np.empty((1, 5), np.float32)})


def test_wrong_numbers_names_and_shapes_are_refused(made):
    records = open_records(made[0])

    with pytest.raises(ShapeError, match="needed 0 to 99"):
        records.read(np.array([100]), {})
    with pytest.raises(ShapeError, match="'speed'"):
        records.read(np.array([0]), {"speed": np.empty(1)})
    with pytest.raises(ShapeError, match=r"needed \(1, 5\)"):
        records.read(np.array([0]), {"wave": np.empty((1, 6))})


def test_a_missing_shard_is_named(made):
    (made[0] / "shard-00002.h5").unlink()

    with pytest.raises(DataError, match=r"shard-00002.h5: No such file"):
        open_records(made[0])
