"""Numerical check of gradient rules: a public tool, and the test of every row of the table."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpctrain.autograd.backward import grad
from hpctrain.autograd.mode import record
from hpctrain.autograd.tensor import Tensor

__all__ = ["check_gradients"]


def check_gradients(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    order: int = 1,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> None:
    """Compare the gradients of ``function`` with central differences in a random direction.

    Parameters
    ----------
    function : callable
        Takes tensors, returns a tensor or a tuple of tensors.
    arguments : sequence of array_like
        Where to check. Floating arguments are taken in float64 and differentiated; others
        (indices, masks) are passed on as they are.
    order : int
        2 checks the gradient of the gradient as well.
    tolerance : float
        Largest relative difference allowed.
    seed : int
        Of the direction and the cotangents.

    Raises
    ------
    AssertionError
        With the analytic and the numeric value.

    Notes
    -----
    Cost: two evaluations and one gradient for each order, whatever the number of elements.
    """
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(a) for a in arguments]
    arrays = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    free = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    direction = [rng.standard_normal(arrays[i].shape) for i in free]
    outputs = _evaluate(function, arrays)
    weights = [rng.standard_normal(o.shape) if o.dtype.kind == "f" else None for o in outputs]

    def scalar(step: float) -> float:
        moved = list(arrays)
        for i, d in zip(free, direction, strict=True):
            moved[i] = arrays[i] + step * d
        found = _evaluate(function, moved)
        return sum(
            float(np.sum(w * o)) for w, o in zip(weights, found, strict=True) if w is not None
        )

    step = 1e-6
    numeric = (scalar(step) - scalar(-step)) / (2 * step)
    gradients = _gradients(function, arrays, free, weights)
    analytic = sum(float(np.sum(g * d)) for g, d in zip(gradients, direction, strict=True))
    scale = max(1.0, abs(numeric), abs(analytic))
    assert abs(numeric - analytic) <= tolerance * scale, (
        f"gradient of {getattr(function, '__name__', function)}: analytic {analytic:.12g}, "
        f"numeric {numeric:.12g} in direction {seed}"
    )
    if order > 1:
        _check_second(function, arrays, free, (order, tolerance, seed))


def _check_second(
    function: Any, arrays: list[Any], free: list[int], rest: tuple[Any, ...]
) -> None:
    order, tolerance, seed = rest

    def gradient(*moved: Any) -> Any:
        for i in free:
            if not moved[i].requires_grad:
                moved[i].attach_grad()
        with record():
            outputs = function(*moved)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            heads = [o for o in outputs if o.dtype.kind == "f" and o.requires_grad]
            weights = [
                Tensor(np.cos(np.arange(o.size, dtype=np.float64)).reshape(o.shape))
                for o in heads
            ]
            return tuple(grad(heads, [moved[i] for i in free], weights, create_graph=True))

    check_gradients(gradient, arrays, order - 1, tolerance, seed + 1)


def _evaluate(function: Any, arrays: Sequence[Any]) -> list[np.ndarray]:
    outputs = function(*(Tensor(a) for a in arrays))
    return [o.asnumpy() for o in (outputs if isinstance(outputs, tuple) else (outputs,))]


def _gradients(function: Any, arrays: Any, free: list[int], weights: Any) -> list[np.ndarray]:
    tensors = [Tensor(a) for a in arrays]
    for i in free:
        tensors[i].attach_grad()
    with record():
        outputs = function(*tensors)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    pairs = [
        (o, Tensor(w))
        for o, w in zip(outputs, weights, strict=True)
        if w is not None and o.requires_grad
    ]
    found = grad([o for o, _ in pairs], [tensors[i] for i in free], [w for _, w in pairs])
    return [g.asnumpy() for g in found]
