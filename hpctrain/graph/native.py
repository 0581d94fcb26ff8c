"""The one door to LLVM, through llvmlite: from the text of a kernel to a function.

LLVM is taken by itself, without numba on top of it: there is no Python to compile (and so
nothing to execute), a kernel takes tens of milliseconds instead of a second, and what is kept
on disk is the object file, not a pickle.

Machine code on disk is run when it is loaded, so the cache is a directory of the user's own,
to which nobody else can write: anything else is neither read nor written. A file holds a
digest of its content; it appears under its name by an atomic rename, so any number of ranks
may start at once without a lock, and at worst each compiles for itself.
"""

import ctypes
import functools
import hashlib
import importlib
import importlib.util
import itertools
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from hpctrain.graph.codegen import SYMBOL

__all__ = ["Compiled", "available", "cache_directory", "compile_text", "fuses"]

_DIGEST_BYTES = 32
_KEPT = 4096  # files in the cache, of some 10 KiB each
_LOCK = Lock()
_COUNT = itertools.count()  # names for the libraries of one process


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel in memory.

    Attributes
    ----------
    function : callable
        Takes three addresses (see `hpctrain.graph.codegen.llvm_text`); lets go of Python's
        global lock while it runs.
    seconds : float
        What compiling or loading took.
    from_disk : bool
    library : object
        Keeps the machine code alive.
    """

    function: Callable[[Any, Any, Any], None]
    seconds: float
    from_disk: bool
    library: Any


def fuses(choice: str) -> bool:
    """Return whether ``on``, ``off`` or ``auto`` asks for fusion here.

    ``auto`` does where kernels can be compiled; ``on`` also where NumPy must do over tiles.
    """
    return choice == "on" or (choice == "auto" and available())


@functools.cache
def available() -> bool:
    """Return whether kernels can be compiled here: llvmlite is installed."""
    return importlib.util.find_spec("llvmlite") is not None


@dataclass(frozen=True, slots=True)
class _Machine:
    binding: Any
    target: Any
    linker: Any
    name: str  # everything that an object file depends on but its text


@functools.cache
def _machine() -> _Machine:
    binding = importlib.import_module("llvmlite.binding")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    triple, cpu = binding.get_default_triple(), binding.get_host_cpu_name()
    features = binding.get_host_cpu_features().flatten()
    target = binding.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=features, opt=2, reloc="pic", codemodel="jitdefault", jit=True
    )
    version = importlib.import_module("llvmlite").__version__
    name = "\n".join((version, triple, cpu, features))
    return _Machine(binding, target, binding.create_lljit_compiler(target), name)


def compile_text(text: str, directory: Path | None = None) -> Compiled:
    """Compile a kernel, or load it from the cache.

    Parameters
    ----------
    text : str
        Made by `hpctrain.graph.codegen.llvm_text`.
    directory : Path or None
        Where object files are kept; None: nowhere.

    Notes
    -----
    One thread at a time, for LLVM's sake; what was made once is there at once.
    """
    with _LOCK:
        return _compiled(text, directory)


@functools.cache
def _compiled(text: str, directory: Path | None) -> Compiled:
    begun = time.perf_counter()
    machine = _machine()
    name = hashlib.sha256(f"{machine.name}\n{text}".encode()).hexdigest()
    code = None if directory is None else _read(directory, name)
    found = code is not None
    if code is None:
        module = machine.binding.parse_assembly(text)
        module.verify()
        code = machine.target.emit_object(module)
        if directory is not None:
            _write(directory, name, code)
    builder = machine.binding.JITLibraryBuilder().add_object_img(code)
    builder.add_current_process().export_symbol(SYMBOL)
    library = builder.link(machine.linker, f"kernel{next(_COUNT)}")
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(library[SYMBOL])
    return Compiled(function, time.perf_counter() - begun, found, library)


# The cache on disk


def cache_directory() -> Path:
    """Return where object files are kept, below ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "hpctrain", "kernels")


def _open(directory: Path) -> int:
    """Open the directory, made if need be; raise an `OSError` if others can write there."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if not _ours(os.fstat(opened)):
        os.close(opened)
        raise PermissionError(f"cache {directory}: others could write here")
    return opened


def _ours(found: os.stat_result) -> bool:
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _read(directory: Path, name: str) -> bytes | None:
    """Return what is kept under ``name``, or None if there is nothing whole and our own."""
    try:
        place = _open(directory)
    except OSError:
        return None
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=place)
        with open(file, "rb") as stream:
            found = os.fstat(file)
            content = stream.read() if stat.S_ISREG(found.st_mode) and _ours(found) else b""
    except OSError:
        return None
    finally:
        os.close(place)
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if code and hashlib.sha256(code).digest() == digest else None


def _write(directory: Path, name: str, code: bytes) -> None:
    """Keep ``code``; a full or read-only disk only means that it is compiled again."""
    temporary = f"{name}.{os.getpid()}.{next(_COUNT)}"
    try:
        place = _open(directory)
    except OSError:
        return
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(temporary, flags, 0o600, dir_fd=place), "wb") as stream:
            stream.write(hashlib.sha256(code).digest() + code)
        os.rename(temporary, name, src_dir_fd=place, dst_dir_fd=place)
        _prune(place)
    except OSError:
        return
    finally:
        os.close(place)


def _prune(place: int) -> None:
    """Drop the older half of the cache if there is too much."""
    names = os.listdir(place)
    if len(names) > _KEPT:
        age = {n: os.stat(n, dir_fd=place, follow_symlinks=False).st_mtime for n in names}
        for name in sorted(names, key=age.__getitem__)[: len(names) // 2]:
            os.unlink(name, dir_fd=place)


def compiler(text: str) -> Callable[[Any, Any, Any], None]:
    """Compile the text of a kernel of anybody, or load it from the cache; return it."""
    return compile_text(text, cache_directory()).function
