"""Corrections of updates that do not wait for each other.

A gradient is late by the updates of others that were made since its worker has fetched its
parameters: it belongs to other parameters. Where there is momentum that is worse than it
looks. With a momentum of 0.9 one update for all workers is stable up to a curvature of
``3.8 / lr``. With one velocity that all push in turn it is so up to ``0.15 / lr`` for three
workers and ``0.13 / lr`` for seven, and no further with a momentum that lasts as many rounds
(``0.9 ** (1 / workers)``, at the rate that fits it). With `Ahead` it is ``0.96 / lr`` and
``0.79 / lr``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.optim import Optimizer

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
    """An optimizer's state for each worker; their steps add up.

    A worker's step leads from where its momentum will be after the next one: Nesterov's. So
    with several workers each computes its gradient at parameters which have made, by the
    momentum of all, about the steps that the others make until it arrives; what is late is
    only what their gradients change of that. In an epoch parameters move as far as with one
    update for all, and momentum lasts for as many steps of a worker.

    Parameters
    ----------
    optimizer : Optimizer
        What `Optimizer.ahead` has returned.
    states : mapping of str to ndarray
        With what every worker begins; `settle` leaves their means here.
    workers : sequence of int
    made : sequence of int
        By slice the updates of each worker that the states stand for.

    Notes
    -----
    Takes the memory of the states once more for every worker. Nothing is done to elements
    that are not updated.

    References
    ----------
    Hakimi et al., "Taming momentum in a distributed asynchronous environment", 2019: what
    is kept here as parameters is what their algorithm DANA-Zero sends to workers, as in
    DANA-Slim.
    Mitliagkas et al., "Asynchrony begets momentum", Allerton 2016, on why one momentum for all
    is too much.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        states: Mapping[str, Flat],
        workers: Sequence[int],
        made: Sequence[int],
    ) -> None:
        self.optimizer, self._means = optimizer, states
        self._own = {
            worker: {name: array.copy() for name, array in states.items()} for worker in workers
        }
        self._made = {worker: list(made) for worker in workers}

    def of(self, worker: int) -> Mapping[str, Flat]:
        """Return the state of a worker."""
        return self._own[worker]

    def step(self, worker: int, index: int) -> int:
        """Count an update of a slice by a worker; return how many it had made before."""
        made = self._made[worker]
        made[index] += 1
        return made[index] - 1

    def settle(self) -> None:
        """Leave the means of the workers' states where they came from."""
        for name, mean in self._means.items():
            mean[...] = 0
            for own in self._own.values():
                mean += own[name] / len(self._own)
