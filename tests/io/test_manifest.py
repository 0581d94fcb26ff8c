"""Hostile and damaged manifests."""

import json

import pytest

from hpctrain.errors import DataError
from hpctrain.io import open_records, refuse

pytestmark = pytest.mark.serial


def rewrite(folder, change):
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/abs/x.h5",
        "a/b.h5",
        "..",
        ".hidden",
        "",
        "x\0y",
        "x" * 300,
        "a b",
        "ä.h5",
        "C:\\x",
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(made, name):
    rewrite(made[0], lambda manifest: manifest["shards"][0].update(name=name))

    with pytest.raises(DataError, match="got the name"):
        open_records(made[0])


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/../b"])
def test_a_path_inside_a_shard_is_plain(made, path):
    rewrite(made[0], lambda manifest: manifest["fields"][0].update(path=path))

    with pytest.raises(DataError, match="got the name"):
        open_records(made[0])


CHANGES = {
    "unknown key": (lambda m: m.update(extra=1), "extra"),
    "other version": (lambda m: m.update(version=2), "got version 2"),
    "other format": (lambda m: m.update(format="x"), "Invalid enum value"),
    "no fields": (lambda m: m.update(fields=[]), "0 fields"),
    "repeated shard": (lambda m: m["shards"].append(m["shards"][0]), "1 repeated"),
    "negative count": (lambda m: m["shards"][0].update(records=-1), "records"),
    "object dtype": (lambda m: m["fields"][0].update(dtype="|O"), "dtype"),
    "long double": (lambda m: m["fields"][0].update(dtype="<f16"), "dtype"),
    "huge record": (lambda m: m["fields"][0].update(shape=[2**40, 2**40]), "too large"),
    "wrong shape": (lambda m: m["fields"][0].update(shape=[4, 4]), "needed"),
    "wrong count": (lambda m: m["shards"][0].update(records=10**9), "needed"),
}


@pytest.mark.parametrize(("change", "sentence"), CHANGES.values(), ids=CHANGES)
def test_a_manifest_that_is_not_ours_is_refused(made, change, sentence):
    rewrite(made[0], change)

    with pytest.raises(DataError, match=sentence):
        refuse(open_records(made[0]).verify())


def test_cut_off_json_is_refused(made):
    text = (made[0] / "manifest.json").read_bytes()
    (made[0] / "manifest.json").write_bytes(text[: len(text) // 2])

    with pytest.raises(DataError, match="needed a manifest"):
        open_records(made[0])


@pytest.mark.parametrize("name", ["shard-00001.h5", "manifest.json"])
def test_a_symbolic_link_in_the_folder_is_refused(made, name):
    (made[0] / name).rename(made[0].parent / name)
    (made[0] / name).symlink_to(made[0].parent / name)

    with pytest.raises(DataError, match="symbolic link"):
        open_records(made[0])
