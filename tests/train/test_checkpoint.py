"""A checkpoint comes back bit for bit, or is refused; the last complete one is never lost."""

import os
import random
import resource
import shutil
import signal
import stat

import numpy as np
import pytest

from hpctrain.errors import CheckpointError
from hpctrain.train import checkpoint

pytestmark = pytest.mark.serial

POINTS = [
    "before data", "after data", "after manifest", "before rename", "after rename",
    "after latest", "during cleanup",
]  # fmt: skip


def arrays_at(step):
    """Return arrays whose values tell the step."""
    rng = np.random.default_rng(step)
    return {"net.0/weight": rng.normal(size=(40, 50)), "count": np.array(step, np.int64)}


def save(root, step, **kwargs):
    return checkpoint.save(root, step, arrays_at(step), {"step": step}, **kwargs)


def assert_resumes_at(root, step):
    _, arrays, state = checkpoint.restore(root, pytest.fail)
    assert state == {"step": step}
    assert set(arrays) == {"net.0/weight", "count"}
    for name, expected in arrays_at(step).items():
        assert arrays[name].tobytes() == expected.tobytes()


def killed(action):
    """Carry out ``action`` in a child that kills itself within; tell whether it did."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def kill_at(name):
    """Return a fault that kills the process, without any cleaning up, at one point."""

    def fault(point):
        if point == name:
            os.kill(os.getpid(), signal.SIGKILL)

    return fault


def test_arrays_of_every_kind_come_back_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "0-d": np.array(3.5, np.float32),
        "empty": np.empty((0, 3), np.float64),
        "bool": rng.random(100) < 0.5,
        "nan": np.array([np.nan, -np.nan, np.inf, -0.0, 5e-324]),
        "uint64": np.array([0, 2**64 - 1], np.uint64),
        "big-endian": np.arange(5, dtype=">i2"),
        "half": rng.normal(size=7).astype(np.float16),
        "strided": rng.normal(size=(6, 8))[::2, ::3],
        "chunks": rng.integers(0, 255, (3, 1200, 1300), np.uint8).astype(np.int32),
        "long row": np.arange(2_000_003, dtype=np.int32),
    }

    path = checkpoint.save(tmp_path, 0, arrays, {})

    loaded, _ = checkpoint.load(path)
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "name", ["/", "..", "../x", "/abs", "a/b", "a//b", ".", "a\0b", "ü", "\ud800", "x" * 1000]
)
def test_a_name_is_a_name_and_never_a_path(tmp_path, name):
    path = checkpoint.save(tmp_path, 1, {name: np.ones(3), "other": np.zeros(2)}, {})
    assert list(checkpoint.load(path)[0]) == [name, "other"]
    assert sorted(os.listdir(path)) == ["arrays.h5", "manifest.json"]


def test_the_state_comes_back_as_it_was(tmp_path):
    state = {
        "rng": np.random.default_rng(5).bit_generator.state,
        "loss": 0.1 + 0.2,
        "nested": {"list": [1, None, True, "é"]},
    }
    path = checkpoint.save(tmp_path, 1, {}, state)
    assert checkpoint.load(path) == ({}, state)


@pytest.mark.parametrize(
    "value", [(1, 2), {1: 2}, float("nan"), float("inf"), np.ones(2), {1}, b"x"], ids=repr
)
def test_a_state_that_would_come_back_changed_is_refused(tmp_path, value):
    with pytest.raises(CheckpointError, match="plain JSON"):
        checkpoint.save(tmp_path, 1, {}, {"key": value})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("dtype", ["O", "c8", "S3", "M8[s]", "f4,i4", "g"])
def test_a_type_that_is_no_plain_number_is_refused(tmp_path, dtype):
    with pytest.raises(CheckpointError, match="needed bool, integer or floating"):
        checkpoint.save(tmp_path, 1, {"x": np.zeros(2, dtype)}, {})
    assert os.listdir(tmp_path) == []


def test_the_step_decides_and_not_the_text_nor_the_time_of_the_file(tmp_path):
    for step in (100_000_000, 99_999_999, 10, 9):
        save(tmp_path, step, keep=9)
    os.utime(tmp_path / "step-00000009")
    assert checkpoint.newest(tmp_path).name == "step-100000000"


def test_the_newest_are_kept_and_what_others_put_there_stays(tmp_path):
    (tmp_path / "step-00000001.copy").mkdir()
    (tmp_path / "best").mkdir()
    (tmp_path / "step-00000001.tmp-0123456789abcdef").mkdir()
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=2)
    assert sorted(os.listdir(tmp_path)) == [
        "LATEST", "best", "step-00000001.copy", "step-00000003", "step-00000004",
    ]  # fmt: skip
    assert (tmp_path / "LATEST").read_text() == "step-00000004\n"


def test_there_is_nothing_to_resume_from_in_an_empty_or_missing_directory(tmp_path):
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.restore(tmp_path / "missing") is None


def test_a_copied_checkpoint_loads_elsewhere(tmp_path):
    shutil.copytree(save(tmp_path / "a", 7), tmp_path / "b" / "step-00000007")
    assert_resumes_at(tmp_path / "b", 7)


@pytest.mark.parametrize(
    ("umask", "file_mode", "dir_mode"), [(0o022, 0o644, 0o755), (0o027, 0o640, 0o750)]
)
def test_permissions_follow_the_umask(tmp_path, umask, file_mode, dir_mode):
    before = os.umask(umask)
    try:
        path = save(tmp_path / "root", 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == dir_mode
    for file in (*path.iterdir(), tmp_path / "root" / "LATEST"):
        assert stat.S_IMODE(file.stat().st_mode) == file_mode


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("earlier", [[], [1], [1, 2]], ids=["first", "second", "third"])
def test_a_kill_at_any_point_leaves_a_complete_checkpoint(tmp_path, point, earlier):
    for step in earlier:
        save(tmp_path, step, keep=2)
    died = killed(lambda: save(tmp_path, 3, keep=2, fault=kill_at(point)))
    assert died or (point == "during cleanup" and len(earlier) < 2)

    if point in POINTS[4:] or not died:
        assert_resumes_at(tmp_path, 3)
    elif earlier:
        assert_resumes_at(tmp_path, earlier[-1])
    else:
        assert checkpoint.restore(tmp_path, pytest.fail) is None

    save(tmp_path, 4, keep=2)
    assert_resumes_at(tmp_path, 4)
    left = sorted(name for name in os.listdir(tmp_path) if name != "LATEST")
    assert all(len(name) == len("step-00000001") for name in left)
    assert len(left) <= 2


@pytest.mark.parametrize("calls", [1, 2, 3, 5, 8])
def test_a_kill_in_the_middle_of_the_data_leaves_the_one_before(tmp_path, monkeypatch, calls):
    save(tmp_path, 1)
    real, left = os.pwrite, [calls]

    def pwrite(handle, data, offset):
        left[0] -= 1
        if left[0] == 0:
            real(handle, data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(handle, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    assert killed(lambda: save(tmp_path, 2))
    assert_resumes_at(tmp_path, 1)


@pytest.mark.parametrize("point", [*POINTS[:4], "between renames", *POINTS[4:]])
def test_a_kill_while_the_only_one_is_replaced_loses_nothing(tmp_path, point):
    save(tmp_path, 1, keep=1)
    assert killed(lambda: save(tmp_path, 1, keep=1, fault=kill_at(point)))
    assert_resumes_at(tmp_path, 1)
    save(tmp_path, 1, keep=1)
    assert sorted(os.listdir(tmp_path)) == ["LATEST", "step-00000001"]


def test_every_flipped_bit_is_noticed_and_the_one_before_is_used(tmp_path):
    save(tmp_path, 1)
    path = save(tmp_path, 2)
    rng = random.Random(0)
    for number in range(320):
        file = path / ("manifest.json" if number % 2 else "arrays.h5")
        good = file.read_bytes()
        position, bit = rng.randrange(len(good)), rng.randrange(8)
        bad = bytearray(good)
        bad[position] ^= 1 << bit
        file.write_bytes(bad)

        with pytest.raises(CheckpointError):
            checkpoint.load(path)
        if number % 40 == 0:
            said = []
            assert checkpoint.restore(tmp_path, said.append)[2] == {"step": 1}
            assert checkpoint.newest(tmp_path, said.append).name == "step-00000001"
            assert len(said) == 2
            assert "passed over for the one before" in said[0]

        file.write_bytes(good)
    assert_resumes_at(tmp_path, 2)


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
@pytest.mark.parametrize("file", ["arrays.h5", "manifest.json"])
def test_a_shortened_file_is_noticed(tmp_path, file, cut):
    path = save(tmp_path, 1)
    data = (path / file).read_bytes()
    (path / file).write_bytes(data[:cut])
    with pytest.raises(CheckpointError):
        checkpoint.load(path)


@pytest.mark.parametrize("file", ["arrays.h5", "manifest.json"])
def test_a_missing_file_is_named(tmp_path, file):
    path = save(tmp_path, 1)
    (path / file).unlink()
    with pytest.raises(CheckpointError, match=f"{file}: cannot be read: No such file"):
        checkpoint.load(path)


def test_damage_is_reported_on_the_standard_error_by_default(tmp_path, capsys):
    (save(tmp_path, 1) / "manifest.json").write_text("{}")
    assert checkpoint.newest(tmp_path) is None
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("limit", [0, 100, 5_000, 12_000])
def test_a_full_disk_is_an_error_and_the_older_checkpoint_stays(tmp_path, limit):
    save(tmp_path, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(CheckpointError, match="cannot be written: File too large; older"):
            save(tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(os.listdir(tmp_path)) == ["LATEST", "step-00000001"]
    assert_resumes_at(tmp_path, 1)


def test_a_root_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save(tmp_path / "file" / "root", 1)


def test_a_checkpoint_under_the_name_of_another_step_is_passed_over(tmp_path):
    save(tmp_path, 1).rename(tmp_path / "step-00000009")
    said = []
    assert checkpoint.newest(tmp_path, said.append) is None
    assert "holds step 1" in said[0]
