"""Parts of a compiled kernel on several threads, by the OpenMP runtime that oneDNN uses.

So all kernels of a rank work on the same threads, and none of a second pool waits beside them.
How a kernel is cut does not depend on them but for plain element-wise ones, whose bits are the
same however they are cut.

The runtime itself pins its threads to cores (`place`), for it ends and starts them as kernels
take fewer and more: threads that were pinned from outside would be followed by others that all
have the core of the one that starts them.
"""

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.graph.codegen import SYMBOL
from hpctrain.graph.native import cache_directory, compile_text

__all__ = ["Call", "limit", "masks", "place", "threads", "together"]

Call = functools.partial[None]

# Each thread takes the next part until there is none: {next, parts, kernel, arguments}.
_DRIVER = f"""
define void @{SYMBOL}(ptr %work, ptr %a, ptr %b) nounwind {{
entry:
  %parts.at = getelementptr i64, ptr %work, i64 1
  %parts = load i64, ptr %parts.at
  %kernel.at = getelementptr i64, ptr %work, i64 2
  %kernel = load ptr, ptr %kernel.at
  %args.at = getelementptr i64, ptr %work, i64 3
  %args = load ptr, ptr %args.at
  br label %next
next:
  %part = atomicrmw add ptr %work, i64 1 monotonic
  %left = icmp slt i64 %part, %parts
  br i1 %left, label %run, label %end
run:
  %first = mul i64 %part, 3
  %pointers.at = getelementptr ptr, ptr %args, i64 %first
  %pointers = load ptr, ptr %pointers.at
  %sizes.at = getelementptr ptr, ptr %pointers.at, i64 1
  %sizes = load ptr, ptr %sizes.at
  %strides.at = getelementptr ptr, ptr %pointers.at, i64 2
  %strides = load ptr, ptr %strides.at
  call void %kernel(ptr %pointers, ptr %sizes, ptr %strides)
  br label %next
end:
  ret void
}}
"""


class _Work(ctypes.Structure):
    _fields_ = (
        ("next", ctypes.c_int64),
        ("parts", ctypes.c_int64),
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
    )


@dataclass(slots=True)
class _Settings:
    threads: int = 1


@functools.cache
def _settings() -> _Settings:
    return _Settings()


def limit(count: int) -> None:
    """Let kernels that are bound from now on take ``count`` threads."""
    _settings().threads = count


def threads() -> int:
    """Return how many threads a kernel that is bound now takes."""
    wanted = _settings().threads
    return wanted if wanted > 1 and _runtime() is not None else 1


def place(cores: Sequence[int]) -> str:
    """Load the runtime, and let it keep its threads on these cores, one on each.

    A thread that starts kernels is pinned to the first core when it does so for the first time,
    and those that help it to the others.

    Parameters
    ----------
    cores : sequence of int
        As many as a kernel takes threads; none: as the environment says.

    Returns
    -------
    str
        Why it cannot be done; empty if it is.
    """
    if cores and "/libgomp" in Path("/proc/self/maps").read_text():
        return "OpenMP was loaded before"
    own, places = os.sched_getaffinity(0), ",".join(f"{{{core}}}" for core in cores)
    wanted = {"OMP_PROC_BIND": "close", "OMP_PLACES": places} if cores else {}
    os.environ.update(wanted)  # it is read when the runtime is loaded, and never again
    try:
        return "" if _runtime() is not None else "there is no OpenMP runtime"
    finally:
        for name in wanted:
            del os.environ[name]
        # Loading it pins the thread that does, and with it all that this one will start.
        os.sched_setaffinity(0, own)


def masks(count: int) -> list[tuple[int, ...]]:
    """Return the cores that each of ``count`` threads of a kernel started here may run on."""
    found: list[tuple[int, ...]] = []
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        lambda _: found.append(tuple(sorted(os.sched_getaffinity(0))))
    )
    if count < 2 or _runtime() is None:
        body(None)
    else:
        _runtime()(body, None, count, 0)
    return sorted(found)


@functools.cache
def _runtime() -> Any:
    """Return the function that starts threads, or None where the runtime is missing."""
    try:
        start = ctypes.CDLL("libgomp.so.1").GOMP_parallel
    except (OSError, AttributeError):
        return None
    start.restype = None
    start.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    return start


@functools.cache
def _driver() -> tuple[Any, int]:
    made = compile_text(_DRIVER, cache_directory())
    return made, _address(made.function)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def together(calls: Sequence[Call]) -> Callable[[], None]:
    """Return what runs calls of one kernel with different arguments, on all threads."""
    count = min(threads(), len(calls))
    if count < 2:
        return calls[0] if len(calls) == 1 else functools.partial(_in_turn, calls)
    flat = [ctypes.addressof(array) for call in calls for array in call.args]
    arguments = (ctypes.c_void_p * len(flat))(*flat)
    work = _Work(0, len(calls), _address(calls[0].func), ctypes.addressof(arguments))
    held = calls, arguments  # the addresses point into them
    given = _driver()[1], ctypes.addressof(work), count, 0
    return functools.partial(_run, work, functools.partial(_runtime(), *given), held)


def _in_turn(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _run(work: _Work, start: Callable[[], None], held: Any) -> None:
    work.next = 0
    start()
