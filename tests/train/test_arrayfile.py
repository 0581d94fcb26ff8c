"""A file that someone else made, with digests that fit, opens nothing but itself."""

import h5py
import numpy as np
import pytest

from hpctrain.errors import CheckpointError
from hpctrain.train import checkpoint
from hpctrain.train.manifest import Entry, Manifest, encode, measure

pytestmark = pytest.mark.serial


def forge(path, build, entry=("x", "00000", (3,), "<f8")):
    """Make a checkpoint whose HDF5 file is built by ``build`` and whose digests fit."""
    path.mkdir()
    with h5py.File(path / "arrays.h5", "w") as file:
        build(file)
    manifest = Manifest(1, [Entry(*entry)], {"arrays.h5": measure(path / "arrays.h5")}, {})
    (path / "manifest.json").write_bytes(encode(manifest))
    return path


def external_link(file):
    file["00000"] = h5py.ExternalLink("/etc/hostname", "/x")


def soft_link(file):
    file["00000"] = h5py.SoftLink("/nowhere")


def external_storage(file):
    file.create_dataset("00000", (3,), "f8", external=[("/etc/hostname", 0, 24)])


def virtual(file):
    layout = h5py.VirtualLayout((3,), "f8")
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", (3,))
    file.create_virtual_dataset("00000", layout)


def group(file):
    file.create_group("00000")


def compressed(file):
    file.create_dataset("00000", data=np.ones(3), compression="gzip")


def other_type(file):
    file.create_dataset("00000", data=np.ones(3, "f4"))


def another_dataset(file):
    file["00000"], file["00001"] = np.ones(3), np.ones(3)


def never_written(file):
    file.create_dataset("00000", (3,), "f8", chunks=(3,))


@pytest.mark.parametrize(
    "build",
    [external_link, soft_link, external_storage, virtual, group, compressed, other_type,
     another_dataset, never_written],
)  # fmt: skip
def test_a_file_that_is_not_of_our_form_is_refused(tmp_path, build):
    with pytest.raises(CheckpointError, match=r"arrays\.h5"):
        checkpoint.load(forge(tmp_path / "step-00000001", build))


def test_more_data_than_the_file_can_hold_is_refused(tmp_path):
    def build(file):
        file.create_dataset("00000", (10**12,), "f8", chunks=(1000,))

    path = forge(tmp_path / "step-00000001", build, ("x", "00000", (10**12,), "<f8"))
    with pytest.raises(CheckpointError, match="cannot hold the 8000000000000 bytes"):
        checkpoint.load(path)
