"""A manifest lists what is there, for programs of any kind, and nothing else is believed."""

import json

import numpy as np
import pytest

from hpctrain.errors import CheckpointError
from hpctrain.train import checkpoint
from hpctrain.train.manifest import Manifest, encode, measure

pytestmark = pytest.mark.serial


def save(root):
    return checkpoint.save(root, 1, {"net.0/weight": np.zeros((40, 50))}, {})


@pytest.mark.parametrize("name", ["../x", "/abs/x", "a\0b", "x" * 5000, "arrays.h5/"])
def test_a_manifest_that_lists_another_file_is_refused(tmp_path, name):
    path = save(tmp_path)
    info = measure(path / "arrays.h5")
    (path / "manifest.json").write_bytes(encode(Manifest(1, [], {name: info}, {})))
    with pytest.raises(CheckpointError, match="lists files other than"):
        checkpoint.load(path)


@pytest.mark.parametrize("file", ["arrays.h5", "manifest.json"])
def test_a_symbolic_link_is_refused(tmp_path, file):
    path = save(tmp_path)
    (path / file).rename(tmp_path / file)
    (path / file).symlink_to(tmp_path / file)
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(path)


def test_a_manifest_of_another_format_is_refused(tmp_path):
    path = save(tmp_path)
    future = encode(Manifest(1, [], {}, {}, 2))
    (path / "manifest.json").write_bytes(future)
    with pytest.raises(CheckpointError, match="not a manifest of format 1"):
        checkpoint.load(path)


def test_the_manifest_is_json_that_others_can_read(tmp_path):
    manifest = json.loads((save(tmp_path) / "manifest.json").read_text())["manifest"]
    assert manifest["step"] == 1
    assert manifest["arrays"][0] == {
        "name": "net.0/weight", "dataset": "00000", "shape": [40, 50], "dtype": "<f8",
    }  # fmt: skip
