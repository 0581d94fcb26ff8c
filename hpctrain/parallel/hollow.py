"""Parameters without memory: shapes to capture a model by, of which a rank fills its own.

A model that is too large for one rank must not be there as a whole even for a moment.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from hpctrain.backend import Device

__all__ = ["fill", "hollow", "settle", "start_hollow"]


def hollow(parameter: Any) -> None:
    """Let a parameter and its gradient be zeros that take no memory and cannot be written."""
    for tensor in parameter.list_data():
        for part in (tensor, tensor.grad):
            if part is not None:
                zero = part.device.module.zeros((), part.dtype)
                part.value = part.device.module.broadcast_to(zero, part.shape)


def refill(parameter: Any) -> None:
    """Give an emptied parameter and its gradient memory again, with zeros."""
    for tensor in parameter.list_data():
        for part in (tensor, tensor.grad):
            if part is not None:
                part.value = part.device.module.zeros(part.shape, part.dtype)


def start_hollow(
    parameters: Mapping[str, Any], device: Device, seed: int, precision: str
) -> dict[str, Any]:
    """Initialise parameters one by one and empty each at once.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        Those that have values already, such as imported ones, keep them.
    device : Device
    seed : int
    precision : str
        Dtype that floating parameters are cast to.

    Returns
    -------
    dict of str to dtype
        Of the parameters that were emptied, or will be initialised once their shape is known:
        the dtype in which they are drawn, for `fill`.
    """
    found = {n: p.dtype for n, p in parameters.items() if not p.initialized}
    for name, parameter in parameters.items():
        if name in found:
            parameter.initialize(ctx=device, seed=seed, key=name)
        if parameter.dtype.kind == "f" and parameter.dtype != np.dtype(precision):
            parameter.cast(precision)
        if name in found and parameter.initialized:
            hollow(parameter)
    return found


def fill(parameter: Any, device: Device, seed: int, name: str, drawn: Any) -> None:
    """Give an emptied parameter memory, and the values that it has in any run of this seed."""
    dtype = parameter.dtype
    refill(parameter)
    if dtype != drawn:
        parameter.cast(drawn)
    parameter.initialize(ctx=device, seed=seed, key=name, force_reinit=True)
    if dtype != drawn:
        parameter.cast(dtype)


def settle(
    parameters: Mapping[str, Any],
    drawn: Mapping[str, Any],
    mine: Collection[str],
    device: Device,
    seed: int,
) -> None:
    """Fill the parameters of this rank, and empty those of all others.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        Of the whole model.
    drawn : mapping of str to dtype
        What `start_hollow` returned.
    mine : collection of str
    device : Device
    seed : int
    """
    for name, parameter in parameters.items():
        if name in mine and name in drawn:
            fill(parameter, device, seed, name, drawn[name])
        elif name not in mine:
            hollow(parameter)
