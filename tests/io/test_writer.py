"""Shards and manifest as they lie on disk."""

import hashlib
import json

import h5py
import numpy as np
import pytest

from hpctrain.errors import DataError
from hpctrain.io import Field, ShardWriter, open_records, write_manifest, write_shard
from hpctrain.io.writer import chunk_records

pytestmark = pytest.mark.serial


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_h5py_alone_reads_back_what_was_written(tmp_path, compress, data_set):
    made = data_set.write(tmp_path, compress=compress)

    parts = []
    for path in sorted(tmp_path.glob("*.h5")):
        with h5py.File(path) as file:
            parts.append({name: file[name][()] for name in made})
            assert file.attrs["hpctrain_format"] == b"shards"
            assert file.attrs["n"] == len(parts[-1]["label"])
            assert file["image"].fletcher32
            assert file["image"].compression == compress
            assert file["image"].attrs["scale"] == 0.5
            assert file["label"].attrs["role"] == b"target"

    assert [len(part["label"]) for part in parts] == [40, 40, 20]
    for name, array in made.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)


def test_the_manifest_lists_sizes_and_hashes(made):
    folder, _ = made

    manifest = json.loads((folder / "manifest.json").read_text())

    for shard in manifest["shards"]:
        data = (folder / shard["name"]).read_bytes()
        assert shard["bytes"] == len(data)
        assert shard["sha256"] == hashlib.sha256(data).hexdigest()


def test_equal_data_make_equal_files(tmp_path, compress, data_set):
    data_set.write(tmp_path / "a", compress=compress)
    data_set.write(tmp_path / "b", compress=compress)

    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_ranks_that_write_whole_shards_make_the_same_folder(tmp_path, data_set):
    made = data_set.write(tmp_path / "one")
    (tmp_path / "many").mkdir()
    fields = open_records(tmp_path / "one").fields

    shards = [
        write_shard(
            tmp_path / "many",
            number,
            fields,
            {name: array[number * 40 : number * 40 + 40] for name, array in made.items()},
        )
        for number in (2, 0, 1)
    ]
    write_manifest(tmp_path / "many", fields, shards)

    assert files(tmp_path / "one") == files(tmp_path / "many")


def test_an_interrupted_conversion_leaves_no_manifest(tmp_path, data_set):
    with (
        pytest.raises(ZeroDivisionError),
        ShardWriter(tmp_path, data_set.FIELDS, shard_records=10) as writer,
    ):
        writer.append(data_set.arrays(25))
        raise ZeroDivisionError

    assert len(list(tmp_path.glob("shard-*.h5"))) == 2
    with pytest.raises(DataError, match="unfinished"):
        open_records(tmp_path)


def test_a_finished_folder_is_overwritten_only_on_request(tmp_path, data_set):
    data_set.write(tmp_path)

    with pytest.raises(DataError, match="finished data set"):
        data_set.write(tmp_path)
    data_set.write(tmp_path, n=30, overwrite=True)

    assert sorted(files(tmp_path)) == ["manifest.json", "shard-00000.h5"]


@pytest.mark.parametrize(
    "change",
    [
        {"label": np.zeros(3, np.int64)},
        {"label": np.zeros(5)},
        {"wave": np.zeros((5, 6), np.float32)},
    ],
    ids=["other count", "float for int", "other shape"],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, data_set, change):
    writer = ShardWriter(tmp_path, data_set.FIELDS)

    with pytest.raises(DataError, match=next(iter(change))):
        writer.append({**data_set.arrays(5), **change})


def test_chunks_are_near_one_mebibyte(tmp_path):
    small = [Field(name="x", dtype="<f4", shape=(8,))]
    middle = [Field(name="x", dtype="<f4", shape=(64, 64))]
    large = [Field(name="x", dtype="<f4", shape=(1024, 1500))]

    assert chunk_records(small) == 256
    assert chunk_records(middle) == 64
    with ShardWriter(tmp_path, large, shard_records=1) as writer:
        assert writer.fields[0].chunk == (1, 1024, 750)


def test_an_empty_data_set_has_no_records(tmp_path, data_set):
    data_set.write(tmp_path, n=0)

    assert open_records(tmp_path).n == 0
