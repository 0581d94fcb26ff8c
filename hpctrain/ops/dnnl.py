"""The one door to oneDNN, through cffi: kernels for CPUs at the machine's own speed.

The library comes with the wheel ``onednn-cpu-gomp`` or with the system. Where it is missing,
of another major version, or built for threads that are not OpenMP's, the NumPy kernels run.
"""

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpctrain.autograd import Spec
from hpctrain.errors import EngineError
from hpctrain.ops.dnnl_api import DECLARED

__all__ = [
    "DTYPES", "Library", "Settings", "choose", "describe", "library", "limit", "provider",
    "settings",
]  # fmt: skip

_WHEEL, _NAME, _MAJOR = "onednn-cpu-gomp", "libdnnl.so.3", 3
_SEQUENTIAL, _OPENMP = 1, 2
_CPU, _IN_ORDER, _USER_SCRATCHPAD = 1, 1, 1
_ANY_TAG = 1
_IMPLEMENTATION, _SCRATCHPAD = 8, 136
DTYPES = MappingProxyType({"bfloat16": 2, "float32": 3, "int32": 4, "uint8": 6})
_BFLOAT16 = 0xE7  # bits of an instruction set: AVX512_BF16 and what comes before it
_AMX = 0xFEF
_SLOW = ("ref", "simple", "nspc", "ncsp")  # beginnings of names of kernels that are plain C++


@dataclass(slots=True)
class Settings:
    """What this process asks for.

    Attributes
    ----------
    kernels : str
        ``auto``: oneDNN where it is there; ``numpy``: never. At first what the environment
        variable ``HPCTRAIN_KERNELS`` says, else ``auto``.
    threads : int
        Of one kernel; 0: what OpenMP would take.
    """

    kernels: str = field(default_factory=lambda: os.environ.get("HPCTRAIN_KERNELS", "auto"))
    threads: int = 0


@functools.cache
def settings() -> Settings:
    """Return the settings of this process; they hold for what is planned from then on."""
    return Settings()


def limit(threads: int) -> None:
    """Let kernels that are made from now on take ``threads`` threads, in any thread."""
    settings().threads = threads


def choose(kernels: str) -> None:
    """Take ``numpy`` kernels from now on, or those of the environment (``auto``)."""
    settings().kernels = Settings().kernels if kernels == "auto" else kernels


class Library:
    """oneDNN, loaded: its handles, and its calls with errors raised.

    Attributes
    ----------
    path, version : str
    narrow, tiles : bool
        Whether this CPU has instructions for bfloat16, and AMX.
    """

    def __init__(self, ffi: Any, lib: Any, path: str) -> None:
        self.ffi, self.lib, self.path = ffi, lib, path
        found = lib.dnnl_version()
        self.version = f"{found.major}.{found.minor}.{found.patch}"
        if found.major != _MAJOR:
            raise OSError(f"{path} is version {self.version}, needed {_MAJOR}")
        if found.cpu_runtime not in (_SEQUENTIAL, _OPENMP):
            raise OSError(f"{path} is not built for OpenMP")
        self._openmp = found.cpu_runtime == _OPENMP
        found = lib.dnnl_get_effective_cpu_isa()
        self.narrow, self.tiles = (found & bits == bits for bits in (_BFLOAT16, _AMX))
        self.engine = self.make(lib.dnnl_engine_create, _CPU, 0)
        self.stream = self.make(lib.dnnl_stream_create, self.engine, _IN_ORDER)
        self.attr = self.make(lib.dnnl_primitive_attr_create)
        lib.dnnl_primitive_attr_set_scratchpad_mode(self.attr, _USER_SCRATCHPAD)

    def threads(self) -> int:
        """Return the number of threads that a kernel made now takes."""
        if not self._openmp:
            return 1
        return settings().threads or int(self.lib.omp_get_max_threads())

    def use_threads(self, threads: int) -> None:
        """Let OpenMP take ``threads`` threads in this thread (it counts for each anew)."""
        if self._openmp:
            self.lib.omp_set_num_threads(threads)

    def make(self, create: Any, *args: Any, destroy: Any = None) -> Any:
        """Return the handle that ``create`` makes; ``destroy`` is called with the last of it.

        Raises
        ------
        NotImplementedError
            If the library has no such kernel.
        """
        handle = self.ffi.new("void **")
        if status := create(handle, *args):
            raise NotImplementedError(f"oneDNN {self.version}: status {status}")
        return handle[0] if destroy is None else self.ffi.gc(handle[0], destroy)

    def numbers(self, values: Sequence[int]) -> Any:
        """Return ``values`` as the library takes dimensions."""
        return self.ffi.new("int64_t[12]", list(values))

    def matrix(
        self, shape: Sequence[int], strides: Sequence[int], dtype: Any = "float32"
    ) -> Any:
        """Describe a matrix that is part of another (or many); strides count elements."""
        create = self.lib.dnnl_memory_desc_create_with_strides
        given = (len(shape), self.numbers(shape), DTYPES[str(dtype)], self.numbers(strides))
        return self.make(create, *given, destroy=self.lib.dnnl_memory_desc_destroy)

    def layout(self, dims: Sequence[int], order: Sequence[int], dtype: Any = "float32") -> Any:
        """Describe a dense array whose axes lie in memory in this order, the last densest."""
        strides, step = [0] * len(dims), 1
        for axis in reversed(order):
            strides[axis] = step
            step *= dims[axis]
        create = self.lib.dnnl_memory_desc_create_with_strides
        given = (len(dims), self.numbers(dims), DTYPES[str(dtype)], self.numbers(strides))
        return self.make(create, *given, destroy=self.lib.dnnl_memory_desc_destroy)

    def images(self, spec: Spec) -> Any:
        """Describe images (N, *space, C), which the library calls (N, C, *space)."""
        count, *space, channels = spec.shape
        order = (0, *range(2, spec.ndim), 1)
        return self.layout((count, channels, *space), order, spec.dtype)

    def free_layout(self, dims: Sequence[int], dtype: Any = "float32") -> Any:
        """Describe an array whose layout the library is to choose."""
        create = self.lib.dnnl_memory_desc_create_with_tag
        given = (len(dims), self.numbers(dims), DTYPES[str(dtype)], _ANY_TAG)
        return self.make(create, *given, destroy=self.lib.dnnl_memory_desc_destroy)

    def attributes(self, adds: bool, function: int | None) -> Any:
        """Return attributes: a result is added to what is there, then goes through a function.

        ``function`` is the library's number of it.
        """
        lib = self.lib
        attr = self.make(
            lib.dnnl_primitive_attr_create, destroy=lib.dnnl_primitive_attr_destroy
        )
        lib.dnnl_primitive_attr_set_scratchpad_mode(attr, _USER_SCRATCHPAD)
        chain = self.make(lib.dnnl_post_ops_create, destroy=lib.dnnl_post_ops_destroy)
        if adds:
            lib.dnnl_post_ops_append_sum(chain, 1.0, 0, 0)  # as what is there
        if function is not None:
            lib.dnnl_post_ops_append_eltwise(chain, function, 0.0, 0.0)
        lib.dnnl_primitive_attr_set_post_ops(attr, chain)
        return attr

    def kernel(self, create: Any, *args: Any, attr: Any = None) -> Any:
        """Return a description of a kernel that ``create`` makes, without its attributes.

        Raises
        ------
        NotImplementedError
            If there is none but plain loops, which are slower than NumPy.
        """
        destroy = self.lib.dnnl_primitive_desc_destroy
        made = self.make(create, *args, attr or self.attr, destroy=destroy)
        name = self.implementation(made)
        if name.startswith(_SLOW):
            raise NotImplementedError(f"oneDNN {self.version}: only {name}")
        return made

    def after(self, made: Any, name: str) -> Any:
        """Let ``made`` be the next kernel for this CPU if the library calls its first so.

        Returns
        -------
        handle
            ``made``, or None if there is no other but slower ones.
        """
        first, _, cpu = self.implementation(made).partition(":")
        if first != name:
            return made
        if self.lib.dnnl_primitive_desc_next_impl(made):
            return None
        found, _, of = self.implementation(made).partition(":")
        return made if of == cpu and not found.startswith(_SLOW) else None

    def reorder(self, source: Any, target: Any, attr: Any = None) -> Any:
        """Return a description of the kernel that copies one layout into another."""
        return self.make(
            self.lib.dnnl_reorder_primitive_desc_create,
            *(source, self.engine, target, self.engine, attr or self.attr),
            destroy=self.lib.dnnl_primitive_desc_destroy,
        )

    def implementation(self, made: Any) -> str:
        """Return the library's name of a kernel."""
        name = self.ffi.new("char **")
        self.lib.dnnl_primitive_desc_query(made, _IMPLEMENTATION, 0, name)
        return str(self.ffi.string(name[0]).decode())

    def chosen(self, made: Any, what: int) -> Any:
        """Return the layout that a kernel has chosen; it lives as long as ``made``."""
        return self.lib.dnnl_primitive_desc_query_md(made, what, 0)

    def scratchpad(self, made: Any) -> Any:
        """Return the layout of the temporary memory of a kernel."""
        return self.chosen(made, _SCRATCHPAD)

    def nbytes(self, desc: Any) -> int:
        """Return the size of an array of this layout."""
        return int(self.lib.dnnl_memory_desc_get_size(desc))

    def same(self, a: Any, b: Any) -> bool:
        """Return whether two layouts are equal."""
        return bool(self.lib.dnnl_memory_desc_equal(a, b))

    def primitive(self, made: Any) -> Any:
        """Return the kernel that ``made`` describes, compiled."""
        destroy = self.lib.dnnl_primitive_destroy
        return self.make(self.lib.dnnl_primitive_create, made, destroy=destroy)

    def memory(self, desc: Any, address: int) -> Any:
        """Return the handle of an array that lies at ``address``."""
        where = self.ffi.cast("void *", address)
        return self.make(self.lib.dnnl_memory_create, desc, self.engine, where,
                         destroy=self.lib.dnnl_memory_destroy)  # fmt: skip

    def failed(self, status: int) -> EngineError:
        """Return the error for a kernel that ended with ``status``."""
        return EngineError(
            f"oneDNN {self.version}: a kernel ended with status {status}, needed 0; "
            "HPCTRAIN_KERNELS=numpy does without the library"
        )


def _places() -> Iterator[str]:
    """Yield where the library may be: the wheel's, the environment's, the system's."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files(_WHEEL) or ():
            if file.name == _NAME:
                yield str(Path(str(file.locate())).resolve())
    yield str(Path(sys.prefix, "lib", _NAME))
    yield _NAME


@functools.cache
def _found() -> tuple[Library | None, str]:
    """Load the library; return it, or why it is not there."""
    if sys.byteorder != "little" or importlib.util.find_spec("cffi") is None:
        return None, "cffi is not installed"
    ffi = importlib.import_module("cffi").FFI()
    ffi.cdef(DECLARED)
    reason = f"{_NAME} is not installed"
    for path in _places():
        try:
            return Library(ffi, ffi.dlopen(path), path), ""
        except (OSError, AttributeError, NotImplementedError) as error:
            if os.path.exists(path) or "cannot open shared object" not in str(error):
                reason = str(error)
    return None, reason


def library() -> Library | None:
    """Return oneDNN, or None if it is missing or not wanted."""
    return None if settings().kernels == "numpy" else _found()[0]


def provider() -> str:
    """Return whose kernels run on CPUs; ranks must agree on it."""
    found = library()
    return "NumPy" if found is None else f"oneDNN {found.version}"


def describe(brief: bool = False) -> str:
    """Return in one line which kernels run on CPUs, and why or, in full, from where."""
    if settings().kernels == "numpy":
        return "NumPy (asked for)"
    found, reason = _found()
    if found is None:
        return f"NumPy ({reason}; pip install 'hpctrain[fast]')"
    return provider() + ("" if brief else f", {found.threads()} thread(s), {found.path}")
