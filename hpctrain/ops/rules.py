"""What rows share: arguments made regular, shapes inferred, cotangents made to fit."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd import Spec, Tensor, apply, as_tensor
from hpctrain.errors import RangeError, ShapeError

__all__ = [
    "axes_of", "axis_of", "broadcast_shapes", "check_ids", "differentiable", "fit",
    "floating", "names", "need", "same_spec", "tensors",
]  # fmt: skip


def need(fits: bool, where: str, specs: Iterable[Spec], needed: str) -> None:
    """Raise a `ShapeError` that names the specs, unless they fit."""
    if not fits:
        raise ShapeError(f"{where}: got {names(specs)}, needed {needed}")


def names(specs: Iterable[Spec]) -> str:
    """Write specs as text."""
    return " and ".join(map(str, specs))


def tensors(*values: Any) -> tuple[Any, ...]:
    """Return each value as a tensor; numbers follow the first one that is a tensor."""
    like = next((v for v in values if isinstance(v, Tensor)), None)
    return tuple(as_tensor(v, like=like) for v in values)


def axis_of(where: str, axis: int, ndim: int) -> int:
    """Count an axis from the front."""
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{where}: got axis {axis}, needed one of {ndim} axes")
    return int(axis) % ndim


def axes_of(where: str, axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return axes counted from the front, in order; all of them for None."""
    if axis is None:
        return tuple(range(ndim))
    given = (axis,) if isinstance(axis, int | np.integer) else tuple(axis)
    axes = sorted(axis_of(where, a, ndim) for a in given)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{where}: got axes {given}, needed each axis at most once")
    return tuple(axes)


def broadcast_shapes(where: str, specs: Sequence[Spec]) -> tuple[int, ...]:
    """Return the common shape of ``specs`` by NumPy's rule."""
    try:
        return np.broadcast_shapes(*(s.shape for s in specs))
    except ValueError:
        raise ShapeError(f"{where}: got {names(specs)}, needed shapes that broadcast") from None


def same_spec(specs: Sequence[Spec], **_: Any) -> list[Spec]:
    """Let the result be like the first input."""
    return [specs[0]]


def floating(where: str, spec: Spec) -> Spec:
    """Return ``spec`` if its dtype is a floating one."""
    need(spec.dtype.kind == "f", where, [spec], "a floating dtype; use cast")
    return spec


def differentiable(tensor: Any) -> bool:
    """Return whether a cotangent of ``tensor`` means anything."""
    return tensor.dtype.kind == "f"


def fit(cotangent: Any, like: Any) -> Any:
    """Sum a cotangent over broadcast axes and convert it to the dtype of ``like``."""
    if cotangent.shape != like.shape:
        cotangent = apply("sum_to", cotangent, shape=like.shape)
    if cotangent.dtype != like.dtype:
        cotangent = apply("cast", cotangent, dtype=like.dtype.name)
    return cotangent


def check_ids(xp: Any, where: str, ids: Any, limit: int) -> None:
    """Raise if an index is out of range; not on a GPU, where looking would block."""
    if xp is np and ids.size and (ids.min() < 0 or ids.max() >= limit):
        bad = int(ids[(ids < 0) | (ids >= limit)].flat[0])
        raise RangeError(
            f"{where}: got index {bad}, needed 0 to {limit - 1}; correct the data, or widen "
            "the model",
            bad,
        )
