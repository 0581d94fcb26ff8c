"""The door to oneDNN: which library is taken, and what is said where there is none."""

import importlib.util
from types import SimpleNamespace

import pytest
from two_kernels import kernels, needs_dnnl

from hpctrain.errors import EngineError
from hpctrain.ops import dnnl

pytestmark = pytest.mark.serial


@pytest.fixture
def nothing_found(monkeypatch):
    """Forget what was found, before and after."""
    monkeypatch.setattr(dnnl, "_found", dnnl._found.__wrapped__)


@pytest.mark.parametrize(
    ("version", "runtime", "text"),
    [((2, 7, 3), 2, "version 2.7.3, needed 3"), ((3, 6, 0), 4, "not built for OpenMP")],
)
def test_a_library_that_does_not_fit_is_refused(version, runtime, text):
    found = SimpleNamespace(
        **dict(zip(("major", "minor", "patch"), version, strict=True)), cpu_runtime=runtime
    )

    with pytest.raises(OSError, match=text):
        dnnl.Library(None, SimpleNamespace(dnnl_version=lambda: found), "libdnnl.so.3")


def test_without_cffi_the_kernels_are_those_of_numpy(nothing_found, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert dnnl.library() is None
    assert dnnl.provider() == "NumPy"
    assert dnnl.describe() == "NumPy (cffi is not installed; pip install 'hpctrain[fast]')"


@needs_dnnl
def test_without_the_library_the_kernels_are_those_of_numpy(nothing_found, monkeypatch):
    monkeypatch.setattr(dnnl, "_NAME", "libdnnl.so.99")

    assert dnnl.library() is None
    for brief in False, True:
        assert "libdnnl.so.99 is not installed" in dnnl.describe(brief)


@needs_dnnl
def test_the_library_says_what_it_is():
    found = dnnl.library()

    assert (
        dnnl.describe() == f"oneDNN {found.version}, {found.threads()} thread(s), {found.path}"
    )
    assert dnnl.describe(brief=True) == f"oneDNN {found.version}"


def test_the_kernels_of_numpy_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("HPCTRAIN_KERNELS", "numpy")
    assert dnnl.Settings().kernels == "numpy"

    with kernels("auto"):
        dnnl.choose("auto")
        assert dnnl.library() is None
        dnnl.choose("numpy")
        assert dnnl.describe() == "NumPy (asked for)"


@needs_dnnl
def test_a_kernel_that_fails_raises():
    error = dnnl.library().failed(5)

    assert isinstance(error, EngineError)
    assert "status 5" in str(error)
    assert "HPCTRAIN_KERNELS=numpy" in str(error)
