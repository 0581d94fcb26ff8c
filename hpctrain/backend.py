"""The only door to CuPy, and the only place that knows whether arrays are NumPy or CuPy.

A *device* is ``cpu`` or one GPU; a rank owns one device.  An *array module* ``xp`` is
``numpy`` or ``cupy``; kernels are written against ``xp`` and take whichever they get.
"""

import functools
import importlib.util
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError

__all__ = [
    "CPU",
    "Array",
    "Device",
    "bfloat16",
    "choose",
    "empty",
    "gpu_count",
    "module_of",
    "to_device",
    "to_host",
]

Array = Any  # numpy.ndarray or cupy.ndarray


@dataclass(frozen=True, slots=True)
class Device:
    """One place where arrays live: the host's memory, or that of one GPU."""

    kind: str = "cpu"
    index: int = 0

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"gpu({self.index})"

    @property
    def module(self) -> ModuleType:
        """The array module of this device, ``numpy`` or ``cupy``."""
        return np if self.kind == "cpu" else _cupy()


CPU = Device()


def _cupy() -> ModuleType:
    if importlib.util.find_spec("cupy") is None:
        raise ConfigError(
            "device: a GPU was asked for, but CuPy is missing; pip install 'hpctrain[gpu]'"
        )
    return importlib.import_module("cupy")


def gpu_count() -> int:
    """Return how many GPUs this process can see; 0 without CuPy or without a driver."""
    if importlib.util.find_spec("cupy") is None:
        return 0
    cupy = importlib.import_module("cupy")
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


def choose(name: str = "auto", local_rank: int = 0) -> Device:
    """Choose the device of a rank and make it current.

    Parameters
    ----------
    name : {"auto", "cpu", "gpu"}
        ``auto`` takes a GPU when one is visible.
    local_rank : int
        The rank's number on its host; the GPU is ``local_rank`` modulo the visible ones.

    Raises
    ------
    ConfigError
        If ``name`` is unknown, or ``gpu`` is asked for and none is visible.
    """
    if name not in ("auto", "cpu", "gpu"):
        raise ConfigError(f"device: got {name!r}, needed auto, cpu or gpu")
    count = 0 if name == "cpu" else gpu_count()
    if count == 0:
        if name == "gpu":
            raise ConfigError(
                "device: gpu was asked for, but no GPU is visible; use cpu or auto"
            )
        return CPU
    device = Device("gpu", local_rank % count)
    _cupy().cuda.Device(device.index).use()
    return device


def module_of(array: Array) -> ModuleType:
    """Return the array module that ``array`` belongs to."""
    return np if isinstance(array, np.ndarray | np.generic) else _cupy()


def empty(shape: tuple[int, ...], dtype: Any, device: Device = CPU) -> Array:
    """Allocate an uninitialised C-contiguous array on ``device``, 64-byte aligned on CPUs."""
    if device.kind != "cpu":
        return _cupy().empty(shape, dtype)
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes].view(dtype).reshape(shape)


@functools.cache
def bfloat16() -> np.dtype[Any] | None:
    """Return the dtype of numbers of 8 significant bits, or None where it is not installed.

    NumPy and CuPy know it once ml_dtypes is imported, also by its name.
    """
    if importlib.util.find_spec("ml_dtypes") is None:
        return None
    return np.dtype(importlib.import_module("ml_dtypes").bfloat16)


def to_host(array: Array) -> np.ndarray:
    """Return ``array`` as a NumPy array; no copy if it is one."""
    return array if isinstance(array, np.ndarray) else np.asarray(_cupy().asnumpy(array))


def to_device(array: Array, device: Device) -> Array:
    """Return ``array`` on ``device``; no copy if it is there already."""
    if device.kind == "cpu":
        return to_host(array)
    return _cupy().asarray(array)
