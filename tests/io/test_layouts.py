"""Users' own files, read as they are."""

import h5py
import numpy as np
import pytest

from hpctrain.errors import DataError
from hpctrain.io import Column, open_records

pytestmark = pytest.mark.serial

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(50, 6, 7)).astype(np.float32)
Y = RANDOM.integers(0, 9, 50).astype(np.uint8)

STORED = {
    "contiguous": {},
    "big-endian contiguous": {"dtype": ">f4"},
    "one row a chunk": {"chunks": (1, 6, 7)},
    "cut inside": {"chunks": (8, 4, 5), "compression": "gzip"},
    "all in one chunk": {"chunks": (50, 6, 7), "fletcher32": True},
}


@pytest.mark.parametrize("options", STORED.values(), ids=STORED)
@pytest.mark.parametrize("userblock", [0, 512])
def test_rows_of_a_file_are_records(tmp_path, options, userblock):
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=userblock) as file:
        file.create_dataset("sim/x", data=X, **options)
        file["y"] = Y
    records = open_records(tmp_path / "a.h5", inputs=["sim/x"], targets=["y"])
    ids = RANDOM.permutation(50)

    out = records.buffers(50)
    records.read(ids, out)

    np.testing.assert_array_equal(out["sim/x"], X[ids])
    np.testing.assert_array_equal(out["y"], Y[ids])
    assert out["y"].dtype == np.int32


def test_a_contiguous_dataset_is_mapped_and_not_cached(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = X
    records = open_records(tmp_path / "a.h5", inputs=["x"])

    records.read(np.arange(50), records.buffers(50))

    assert records.cache.misses == 0


def test_files_of_a_pattern_follow_each_other_by_name(tmp_path):
    for start, name in ((0, "b1"), (20, "b2"), (25, "c")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            stop = {0: 20, 20: 25, 25: 50}[start]
            file["x"], file["y"] = X[start:stop], Y[start:stop]
    records = open_records(str(tmp_path / "*.h5"), inputs=["x"], targets=["y"])

    out = records.buffers(50)
    records.read(np.arange(50), out)

    np.testing.assert_array_equal(out["x"], X)


def test_each_file_is_one_record(tmp_path):
    for row in range(10):
        with h5py.File(tmp_path / f"{row}.h5", "w") as file:
            file.create_dataset("x", data=X[row], chunks=(3, 7) if row % 2 else None)
            file["y"] = Y[row]
    records = open_records(
        str(tmp_path / "*.h5"), inputs=["x"], targets=[Column("y", "class")], layout="file"
    )

    out = records.buffers(3)
    records.read(np.array([9, 0, 3]), out)

    assert records.n == 10
    np.testing.assert_array_equal(out["x"], X[[9, 0, 3]])
    np.testing.assert_array_equal(out["class"], Y[[9, 0, 3]])


def test_one_shard_alone_brings_its_roles_and_scale(made):
    whole, alone = open_records(made[0]), open_records(made[0] / "shard-00000.h5")

    first, second = whole.buffers(40), alone.buffers(40)
    whole.read(np.arange(40), first)
    alone.read(np.arange(40), second)

    assert {f.name for f in alone.targets} == {"label"}
    for name, array in first.items():
        np.testing.assert_array_equal(second[name], array)


def test_fields_of_a_shard_folder_can_be_chosen(made):
    records = open_records(made[0], inputs=[Column("wave", "x")], targets=["image"])

    assert [(field.name, field.role) for field in records.fields] == [
        ("x", "input"), ("image", "target"),
    ]  # fmt: skip
    with pytest.raises(DataError, match="one of image, wave, label"):
        open_records(made[0], inputs=["speed"])


def test_what_is_missing_is_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"], file["s"] = X, Y[:49], 1.0
    (tmp_path / "b.h5").write_bytes(b"CDF\x01" + bytes(100))
    (tmp_path / "c.h5").write_bytes(b"text")
    path = tmp_path / "a.h5"

    for sentence, arguments in {
        "no such file": {"path": tmp_path / "no.h5", "inputs": ["x"]},
        "no such dataset; the file holds s, x, y": {"path": path, "inputs": ["z"]},
        "set inputs and targets": {"path": path},
        "50 of x, 49 of y": {"path": path, "inputs": ["x"], "targets": ["y"]},
        "got a scalar": {"path": path, "inputs": ["s"]},
        "netCDF-3": {"path": tmp_path / "b.h5", "inputs": ["x"]},
        "another kind": {"path": tmp_path / "c.h5", "inputs": ["x"]},
    }.items():
        with pytest.raises(DataError, match=sentence):
            open_records(**arguments)


def test_a_file_that_differs_from_the_first_is_named(tmp_path):
    for name, data in (("a", X), ("b", X[:, :5])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["x"] = data
    records = open_records(str(tmp_path / "*.h5"), inputs=["x"])

    with pytest.raises(DataError, match=r"b.h5:x: got <f4 \(50, 5, 7\), needed <f4"):
        records.read(np.array([60]), records.buffers(1))


def test_all_bad_files_of_a_pattern_are_named(tmp_path):
    for name in "abcd":
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["y" if name == "c" else "x"] = X
    (tmp_path / "d.h5").write_bytes((tmp_path / "d.h5").read_bytes()[:-100])

    with pytest.raises(DataError) as caught:
        open_records(str(tmp_path / "*.h5"), inputs=["x"])

    lines = str(caught.value).split("\n")
    assert len(lines) == 2
    assert "c.h5:x: no such dataset" in lines[0]
    assert "d.h5: got a damaged or cut-off HDF5 file" in lines[1]
