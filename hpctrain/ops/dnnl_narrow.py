"""Whether products can be made of bfloat16 here, and in which words it is said."""

from hpctrain import backend
from hpctrain.ops.dnnl import library

__all__ = ["describe_narrow", "lacking"]


def lacking(device: backend.Device = backend.CPU) -> str:
    """Return what products of bfloat16 lack on ``device``; empty if nothing."""
    found = library()
    if device.kind != "cpu":
        return "kernels for GPUs"
    if backend.bfloat16() is None:
        return "ml_dtypes (pip install 'hpctrain[fast]')"
    if found is None:
        return "oneDNN (pip install 'hpctrain[fast]')"
    return "" if found.narrow else "a CPU with AVX512_BF16 or AMX"


def describe_narrow() -> str:
    """Return in one line whether they can, on the host."""
    missing, found = lacking(), library()
    if missing or found is None:
        return f"no, for want of {missing}"
    return f"yes, by {'AMX' if found.tiles else 'AVX512_BF16'}"
