"""Devices by MXNet's names."""

from collections.abc import Sequence

from hpctrain.backend import Device
from hpctrain.errors import ConfigError

__all__ = ["as_devices", "cpu", "gpu"]


def cpu(index: int = 0) -> Device:
    """Return a device that is the host; several of them share its memory."""
    return Device("cpu", index)


def gpu(index: int = 0) -> Device:
    """Return the GPU number ``index``."""
    return Device("gpu", index)


def as_devices(ctx: Device | Sequence[Device] | None) -> list[Device]:
    """Return ``ctx`` as a list of devices; the host if None.

    Raises
    ------
    ConfigError
        If there is none, or one of them twice.
    """
    devices = [ctx] if isinstance(ctx, Device) else [cpu()] if ctx is None else list(ctx)
    if not devices or len(set(devices)) < len(devices):
        raise ConfigError(f"ctx: got {devices}, needed one device, or several different ones")
    return devices
