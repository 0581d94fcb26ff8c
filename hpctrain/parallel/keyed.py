"""What stores are given: keys with tensors, one for each device; and what they send."""

from collections.abc import Iterator, Sequence
from typing import Any

from hpctrain.autograd import Tensor
from hpctrain.backend import to_device
from hpctrain.errors import ConfigError
from hpctrain.parallel.updater import Key

__all__ = ["BUCKET_BYTES", "all_of", "buckets", "paired", "summed"]

BUCKET_BYTES = 4 << 20  # arrays are sent together up to about this size


def paired(key: Any, value: Any) -> list[tuple[Key, Any]]:
    """Return (key, value) pairs, from one of each or from a list of each."""
    if not isinstance(key, list | tuple):
        return [(key, value)]
    if not isinstance(value, list | tuple) or len(value) != len(key):
        raise ConfigError(f"kvstore: got {len(key)} keys, needed as many values in a list")
    return list(zip(key, value, strict=True))


def all_of(value: Any) -> list[Tensor]:
    """Return the tensors of one key, one for each device."""
    found = list(value) if isinstance(value, list | tuple) else [value]
    if not found or not all(isinstance(item, Tensor) for item in found):
        raise ConfigError(f"kvstore: got {value!r}, needed a tensor or several")
    return found


def summed(values: Sequence[Tensor], stored: Tensor) -> Tensor:
    """Return the sum over devices, in their order, as a new array beside the stored one."""
    for value in values:
        if value.spec != stored.spec:
            raise ConfigError(f"kvstore: got {value.spec}, needed {stored.spec}")
    device = stored.device
    total = to_device(values[0].array, device).copy(order="C")
    for value in values[1:]:
        total += to_device(value.array, device)
    return Tensor(total, device=device)


def buckets(arrays: Sequence[Any]) -> Iterator[list[Any]]:
    """Cut a list of arrays into runs of one dtype and device, of at most the bucket's size."""
    bucket: list[Any] = []
    size = 0
    for array in arrays:
        other = bucket and (
            array.dtype != bucket[0].dtype or type(array) is not type(bucket[0])
        )
        if bucket and (other or size + array.nbytes > BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(array)
        size += array.nbytes
    if bucket:
        yield bucket
