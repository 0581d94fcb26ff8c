"""Corrections of updates that do not wait for each other.

A gradient is late by the updates of others that were made since its worker has fetched its
parameters: it belongs to other parameters, and where there is momentum all workers push one
common velocity, each as if it were alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.optim import SGD, Optimizer

__all__ = ["Ahead", "Piece", "delayed"]

Flat = np.ndarray[Any, np.dtype[Any]]
Piece = Callable[[int, int], list[Any]]
"""From first and last element to arrays whose sum is that piece of a gradient."""


def delayed(gradient: Piece, weights: Flat, had: Flat, factor: float) -> Piece:
    """Return a gradient moved from the parameters it was computed with to those of now.

    ``g + factor g² (weights - had)``: the square stands for the diagonal of the Hessian.

    Parameters
    ----------
    gradient : callable
    weights, had : ndarray, shape (total,)
        The parameters as they are, and as the worker had them.
    factor : float

    References
    ----------
    Zheng et al., "Asynchronous stochastic gradient descent with delay compensation",
    ICML 2017.
    """

    def moved(a: int, b: int) -> list[Any]:
        (grad,) = gradient(a, b)
        found: Any = weights[a:b] - had[a:b]
        found *= grad
        found *= grad
        found *= factor
        found += grad
        return [found]

    return moved


class Ahead:
    """A velocity for each worker; they are sent where the parameters will soon be.

    With one worker that is Nesterov's momentum; with several each computes its gradient at
    parameters which have made, by the velocities of all, about the steps that others make
    until it arrives.

    Parameters
    ----------
    optimizer : Optimizer
        SGD with momentum.
    states : dict of str to ndarray
        The optimizer's. Its momentum becomes the mean of the workers' velocities.
    workers : sequence of int

    Notes
    -----
    Takes the memory of the momentum once more for every worker.

    References
    ----------
    Hakimi et al., "Taming momentum in a distributed asynchronous environment", 2019
    (the algorithm DANA-Zero).
    """

    def __init__(
        self, optimizer: Optimizer, states: Mapping[str, Flat], workers: Sequence[int]
    ) -> None:
        if not isinstance(optimizer, SGD) or not optimizer.momentum or optimizer.nesterov:
            raise ConfigError(
                f"exchange.compensation: got momentum for {optimizer}, needed sgd with a "
                "momentum above 0 and without nesterov, which it stands for; choose another"
            )
        self._momentum, self._mean = optimizer.momentum, states["momentum"]
        self._own = {worker: self._mean.copy() for worker in workers}
        self._rates: dict[int, float] = {}

    def begin(self, worker: int, a: int, b: int) -> dict[str, Flat]:
        """Return the state with which to update elements a up to b for a worker."""
        self._mean[a:b] -= self._own[worker][a:b] / len(self._own)
        return {"momentum": self._own[worker]}

    def end(self, worker: int, a: int, b: int) -> None:
        """Note that this update is made."""
        self._mean[a:b] += self._own[worker][a:b] / len(self._own)

    def move(self, index: int, rate: float) -> None:
        """Note the learning rate of the last update of a slice."""
        self._rates[index] = rate * len(self._own)

    def of(self, index: int, weights: Flat, a: int, b: int) -> Flat:
        """Return what is sent instead of some weights, whose state are elements a up to b."""
        factor = self._momentum * self._rates.get(index, 0.0)
        found: Flat = weights - weights.dtype.type(factor) * self._mean[a:b]
        return found
