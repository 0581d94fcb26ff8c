"""Clipping by the global norm, in two halves: what is summed over ranks, and what is not."""

import math

import numpy as np

from hpctrain.backend import Array, module_of
from hpctrain.errors import ConfigError

__all__ = ["clip_scale", "finite", "sum_of_squares"]

_BLOCK = 65_536  # long enough for the dot product, short enough to lose no digits


def sum_of_squares(grad: Array) -> float:
    """Return the sum of the squares of the elements of ``grad``.

    Parameters
    ----------
    grad : array, shape (n,), float
        A slice of the flat gradient. Sums of disjoint slices add up, over ranks as well.

    Notes
    -----
    Dot products of blocks in the dtype of ``grad``, added up in double precision: the order
    is fixed, so equal gradients give equal sums. On a GPU it waits for the result.
    """
    size = _BLOCK if isinstance(grad, np.ndarray) else max(1, grad.size)
    parts = (grad[start : start + size] for start in range(0, grad.size, size))
    return math.fsum(float(part.dot(part)) for part in parts)


def finite(grad: Array) -> bool:
    """Return whether no element of ``grad`` is infinite or NaN.

    Parameters
    ----------
    grad : array, shape (n,), float

    Notes
    -----
    Its product with zeros is NaN if one is: a dot product runs at the rate of memory and needs
    no room. On a GPU it waits for the result.
    """
    size = _BLOCK if isinstance(grad, np.ndarray) else max(1, grad.size)
    zeros = module_of(grad).zeros(min(size, grad.size), grad.dtype)
    parts = (grad[start : start + size] for start in range(0, grad.size, size))
    with np.errstate(invalid="ignore"):
        return all(float(part.dot(zeros[: part.size])) == 0 for part in parts)


def clip_scale(squares: float, max_norm: float, scale: float = 1.0) -> float:
    """Return the factor that brings a gradient's global norm down to ``max_norm``.

    Parameters
    ----------
    squares : float
        `sum_of_squares` of the whole gradient, over all ranks that hold a part of it.
    max_norm : float
        Largest norm that is let through.
    scale : float
        Factor that the gradient gets anyway; the limit holds for the scaled gradient.

    Returns
    -------
    float
        ``scale``, or less; NaN if the gradient is not finite, so that it cannot be missed.

    References
    ----------
    Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks",
    ICML 2013.
    """
    if max_norm <= 0:
        raise ConfigError(f"clip: got max_norm {max_norm}, needed more than 0")
    norm = math.sqrt(squares) * abs(scale)
    if not math.isfinite(norm):
        return math.nan
    return scale if norm <= max_norm else scale * max_norm / norm
