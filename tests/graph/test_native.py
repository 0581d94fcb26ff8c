"""Compiling: what is kept on disk, by whom it may be written, and many processes at once."""

import ctypes
import subprocess
import sys

import numpy as np
import pytest

from hpctrain.autograd.element import source
from hpctrain.graph.codegen import Loops, Operand, llvm_text

pytest.importorskip("llvmlite")
from hpctrain.graph import native
from hpctrain.graph.native import compile_text

pytestmark = pytest.mark.serial


def text(number):
    """Return a kernel that no other test has."""
    operand = Operand("float64", 1)
    x = source(0, "float64") * 3.0 + float(number)
    return llvm_text(Loops(1, (operand,), ((x, operand),), (False,)))


def fresh(code, directory):
    """Compile as another process would."""
    return native._compiled.__wrapped__(code, directory)


def values(compiled):
    x, y = np.arange(5.0), np.zeros(5)
    compiled.function(
        (ctypes.c_void_p * 2)(x.ctypes.data, y.ctypes.data),
        (ctypes.c_int64 * 1)(5),
        (ctypes.c_int64 * 2)(8, 8),
    )
    return y.tolist()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "kernels"


def test_a_second_process_loads_what_the_first_has_compiled(cache):
    first, second = fresh(text(1), cache), fresh(text(1), cache)

    assert (first.from_disk, second.from_disk) == (False, True)
    assert values(first) == values(second) == [1.0, 4.0, 7.0, 10.0, 13.0]
    assert [len(p.name) for p in cache.iterdir()] == [64]


def test_one_process_compiles_a_text_once(cache):
    assert compile_text(text(2), cache) is compile_text(text(2), cache)


def test_another_text_is_another_file(cache):
    fresh(text(3), cache)
    fresh(text(4), cache)

    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b[:40] + b"x" + b[41:], bytes])
def test_a_damaged_file_is_compiled_anew_and_replaced(cache, damage):
    fresh(text(5), cache)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole) if damage is not bytes else b"")

    found = fresh(text(5), cache)

    assert not found.from_disk
    assert values(found)[0] == 5.0
    assert file.read_bytes() == whole


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_directory_that_others_can_write_is_not_used(cache, mode):
    fresh(text(6), cache)
    cache.chmod(mode)

    again, other = fresh(text(6), cache), fresh(text(7), cache)

    assert not again.from_disk
    assert not other.from_disk
    assert len(list(cache.iterdir())) == 1


def test_a_file_that_others_can_write_is_not_loaded(cache):
    fresh(text(8), cache)
    (file,) = cache.iterdir()
    file.chmod(0o666)

    assert not fresh(text(8), cache).from_disk


def test_a_link_in_place_of_the_directory_or_a_file_is_not_followed(cache, tmp_path):
    fresh(text(9), cache)
    (file,) = cache.iterdir()
    real = tmp_path / "real"
    file.rename(real)
    file.symlink_to(real)
    link = tmp_path / "link"
    link.symlink_to(cache)

    assert not fresh(text(9), cache).from_disk
    assert not fresh(text(9), link).from_disk


def test_where_nothing_can_be_written_kernels_are_compiled_all_the_same(tmp_path):
    (tmp_path / "file").write_text("")

    found = fresh(text(10), tmp_path / "file" / "kernels")

    assert values(found)[0] == 10.0


def test_the_cache_is_where_the_user_wants_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.cache_directory() == tmp_path / "hpctrain" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert native.cache_directory() == tmp_path / ".cache" / "hpctrain" / "kernels"


def test_the_older_half_goes_when_there_is_too_much(cache, monkeypatch):
    monkeypatch.setattr(native, "_KEPT", 3)
    for number in range(4):
        fresh(text(20 + number), cache)

    assert len(list(cache.iterdir())) == 2
    assert fresh(text(23), cache).from_disk


@pytest.mark.slow
def test_many_processes_may_start_at_once(cache, tmp_path):
    (tmp_path / "kernel.ll").write_text(text(11))
    code = (
        "import pathlib, sys; from hpctrain.graph.native import compile_text; "
        "compile_text(pathlib.Path(sys.argv[1]).read_text(), pathlib.Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "kernel.ll"), str(cache)]

    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    said = [process.communicate(timeout=60)[1] for process in running]

    assert said == [b""] * 4
    assert len(list(cache.iterdir())) == 1
    assert fresh(text(11), cache).from_disk
