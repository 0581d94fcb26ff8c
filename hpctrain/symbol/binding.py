"""What `bind` is given: arrays by name or in order, and which gradients are wanted."""

from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.autograd import Spec, Tensor
from hpctrain.backend import Device, empty
from hpctrain.errors import ConfigError

__all__ = ["Given", "by_name", "gradient_requests", "zeros"]

Given = Mapping[str, Any] | Sequence[Any] | None


def gradient_requests(names: Sequence[str], given: str | Given) -> dict[str, str]:
    """Return ``write``, ``add`` or ``null`` for each of ``names``."""
    if isinstance(given, str):
        requests = dict.fromkeys(names, given)
    elif isinstance(given, Mapping):
        requests = {name: given.get(name, "null") for name in names}
    else:
        requests = dict(zip(names, given or (), strict=True))
    for name, request in requests.items():
        if request not in ("write", "add", "null"):
            raise ConfigError(f"bind: got grad_req {request!r} for {name!r}")
    return requests


def zeros(spec: Spec, ctx: Device) -> Tensor:
    """Return a tensor of zeros on ``ctx``."""
    array = empty(spec.shape, spec.dtype, ctx)
    array[...] = 0
    return Tensor(array, device=ctx)


def by_name(what: str, names: list[str], given: Given, partly: bool = False) -> dict[str, Any]:
    """Return tensors by name, from a mapping or from a list in the order of ``names``."""
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        pairs = zip(names, given, strict=len(given) != len(names))
        given = {name: tensor for name, tensor in pairs if tensor is not None}
    missing = [name for name in names if name not in given]
    if missing and not partly:
        raise ConfigError(f"bind: got nothing for {missing[0]!r} in {what}")
    return {name: given[name] for name in names if name in given}
