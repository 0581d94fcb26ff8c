"""Hostile files: each is refused, named, and nothing is read."""

import fcntl
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from hpctrain.errors import DataError
from hpctrain.io import open_records

pytestmark = pytest.mark.serial


def external_link(file, folder):
    with h5py.File(folder / "secret.h5", "w") as other:
        other["x"] = np.ones((4, 2))
    file["x"] = h5py.ExternalLink(str(folder / "secret.h5"), "/x")


def soft_link(file, folder):
    file["y"] = np.ones((4, 2))
    file["x"] = h5py.SoftLink("/y")


def link_on_the_way(file, folder):
    file["a/g/y"] = np.ones((4, 2))
    file["b"] = h5py.SoftLink("/a/g")
    file["x"] = h5py.SoftLink("/b/y")


def virtual(file, folder):
    layout = h5py.VirtualLayout((4, 2), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "gone.h5"), "x", (4, 2))
    file.create_virtual_dataset("x", layout)


def external_storage(file, folder):
    file.create_dataset("x", (4, 2), "u1", external=[("/etc/hostname", 0, 8)])


def huge(file, folder):
    file.create_dataset("x", (10**6, 10**6), "f8", chunks=(1, 1000))


def strings(file, folder):
    file["x"] = ["a", "b"]


def compound(file, folder):
    file["x"] = np.zeros(4, [("a", "f4"), ("b", "i4")])


def references(file, folder):
    file["y"] = 1
    file.create_dataset("x", data=[file["y"].ref] * 4, dtype=h5py.ref_dtype)


def group(file, folder):
    file.create_group("x/inner")


def other_filter(file, folder):
    file.create_dataset("x", data=np.ones((4, 2)), chunks=(4, 2), scaleoffset=3)


def huge_chunk(file, folder):
    file.create_dataset("x", (2000, 2**17), "f8", chunks=(2000, 1))


HOSTILE = {
    external_link: "ExternalLink",
    soft_link: "SoftLink",
    link_on_the_way: "SoftLink",
    virtual: "virtual dataset",
    external_storage: "external storage",
    huge: "declares 8,000,000,000,000 bytes",
    strings: "got object",
    compound: r"needed booleans, integers or floats",
    references: "got object",
    group: "got a group",
    other_filter: "filter scaleoffset",
    huge_chunk: "fewer records a chunk",
}


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_what_is_not_plain_data_in_the_file_is_refused(tmp_path, make):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file, tmp_path)

    with pytest.raises(DataError, match=HOSTILE[make]) as caught:
        open_records(tmp_path / "a.h5", inputs=["x"]).grain  # noqa: B018 - looks at the file

    assert str(tmp_path / "a.h5") in str(caught.value)


def test_a_path_does_not_lead_through_a_linked_group(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        link_on_the_way(file, tmp_path)

    with pytest.raises(DataError, match="SoftLink at 'b'"):
        open_records(tmp_path / "a.h5", inputs=["b/y"])


def test_a_locked_file_can_be_read(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.ones((4, 2))

    with open(path, "rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)  # as HDF5 does for a writer
        with pytest.raises(BlockingIOError):
            h5py.File(path, "r", locking=True)
        records = open_records(path, inputs=["x"])

    assert records.n == 4


def test_a_file_that_this_process_has_open_otherwise_is_called_so(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", locking=True) as file:
        file["x"] = np.ones((4, 2))

        with pytest.raises(DataError, match="already open in this process"):
            open_records(tmp_path / "a.h5", inputs=["x"])


@pytest.mark.slow
@pytest.mark.parametrize(("given", "kept"), [(None, "::"), ("", "")])
def test_filter_plugins_are_off_unless_the_user_asks(given, kept):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "MPI"))}
    environment.pop("HDF5_PLUGIN_PRELOAD", None)
    if given is not None:
        environment["HDF5_PLUGIN_PRELOAD"] = given
    code = (
        "import hpctrain.io.hdf5, os, sys; "
        "assert 'h5py' in sys.modules; print(os.environ['HDF5_PLUGIN_PRELOAD'])"
    )

    printed = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)

    assert printed.strip() == kept
