"""What describe says about good and hostile files."""

import h5py
import numpy as np
import pytest

from hpctrain.io import describe

pytestmark = pytest.mark.serial


def test_a_shard_folder_gives_one_row_for_each_dataset(made):
    rows = describe(made[0])

    assert len(rows) == 9
    row = next(row for row in rows if row.path == "image")
    assert (row.shape, row.dtype, row.chunks) == ((40, 4, 3), "uint8", (40, 4, 3))
    assert row.filters == ("fletcher32",)
    assert row.raw_bytes == 480
    assert row.stored_bytes == 484
    assert dict(row.attributes) == {"offset": "1.0", "role": "input", "scale": "0.5"}
    assert not any(row.note for row in rows)


def test_links_and_cycles_are_named_and_not_followed(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a/x"] = np.ones(3)
        file["a/again"] = file["a"]
        file["out"] = h5py.ExternalLink("/etc/hostname", "/x")
        file["text"] = "abc"
        file.create_dataset("raw", (2,), "u1", external=[("/etc/hostname", 0, 2)])

    notes = {row.path: row.note for row in describe(tmp_path / "a.h5")}

    assert notes["a/x"] == ""
    assert notes["out"] == "ExternalLink, not followed"
    assert "external storage" in notes["raw"]
    assert "needed booleans, integers or floats" in notes["text"]
    assert len(notes) == 4
