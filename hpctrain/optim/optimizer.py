"""Optimizers over flat slices: one pass in blocks that stay in cache, in place."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from hpctrain.autograd.element import Element
from hpctrain.backend import Array, module_of
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.optim.compiled import compiled_update
from hpctrain.optim.flat import Block, blocks, check_flat, summed

__all__ = ["Optimizer"]


@dataclass(frozen=True)
class Optimizer(ABC):
    """What all optimizers share: numbers, and the walk over a slice.

    Parameters
    ----------
    lr : float
        Learning rate where no schedule and no call says otherwise.
    weight_decay : float
        Strength of the pull towards zero where the call does not say otherwise.
    rescale_grad : float
        Factor on every gradient, before anything else.
    clip_gradient : float or None
        Limit to which each element of the scaled gradient is clipped, both ways.
    """

    lr: float = 0.01
    weight_decay: float = 0.0
    rescale_grad: float = 1.0
    clip_gradient: float | None = None

    name: ClassVar[str]

    def __post_init__(self) -> None:
        if self.lr < 0 or self.weight_decay < 0:
            raise ConfigError(
                f"{self.name}: got lr {self.lr} and weight_decay {self.weight_decay}, "
                "needed numbers of at least 0"
            )
        if self.clip_gradient is not None and self.clip_gradient <= 0:
            raise ConfigError(
                f"{self.name}: got clip_gradient {self.clip_gradient}, needed more than 0; "
                "leave it out for no clipping"
            )

    @abstractmethod
    def ahead(self) -> "Optimizer | None":
        """Return the same with steps from where the momentum will lead; None if nowhere."""

    @property
    @abstractmethod
    def state_names(self) -> tuple[str, ...]:
        """Names of the arrays that this optimizer keeps for each slice."""

    @abstractmethod
    def _step(self, block: "Block", lr: float, step: int, weight_decay: float) -> None:
        """Update one block, whose gradient is scaled and clipped already."""

    @abstractmethod
    def formula(
        self, weight: Element, grad: Element, states: Sequence[Element], numbers: Any
    ) -> list[Element]:
        """Return the new states and the new weight, in the arithmetic of `_step`.

        ``grad`` is scaled already; ``numbers`` are those of `numbers`, the first of them None
        if there is no weight decay.
        """

    @abstractmethod
    def numbers(self, lr: float, step: int, weight_decay: float) -> tuple[float, ...]:
        """Return the weight decay, and what else changes between calls."""

    def make_state(
        self, n: int, dtype: Any = np.float32, xp: ModuleType = np
    ) -> dict[str, Array]:
        """Return the state before the first update: zeros of shape (n,) by name."""
        return {name: xp.zeros(n, dtype) for name in self.state_names}

    def update(  # noqa: PLR0913 (four arrays and the numbers that change between calls)
        self,
        weight: Array,
        grad: Array | Sequence[Array],
        state: Mapping[str, Array],
        *,
        lr: float,
        step: int,
        weight_decay: float | None = None,
        scale: float = 1.0,
        copies: Sequence[Array] = (),
    ) -> None:
        """Update ``weight`` and ``state`` in place.

        Parameters
        ----------
        weight, grad : array, shape (n,), one float dtype and device
            ``grad`` is not changed. It may be a sequence of arrays, to be summed in order.
        state : mapping of str to array, shape (n,)
            From `make_state`; changed in place.
        lr : float
            Learning rate of this update.
        step : int
            Number of updates made before this one.
        weight_decay : float, optional
            Instead of the optimizer's own.
        scale : float
            Factor on the gradient, on top of ``rescale_grad``.
        copies : sequence of array, shape (n,)
            Get the new ``weight`` as well.

        Raises
        ------
        ShapeError
            If the arrays are not all of shape (n,), or a state is missing.

        Notes
        -----
        Reads and writes each array once. Safe to call from several threads on disjoint
        slices: the only temporaries, two blocks long, belong to the call.
        """
        decay = self.weight_decay if weight_decay is None else weight_decay
        grads: list[Any] = list(grad) if isinstance(grad, list | tuple) else [grad]
        states = [state[name] for name in self._checked(weight, state)]
        factor = self.rescale_grad * scale
        if self.clip_gradient is None and module_of(weight) is np:
            check_flat(weight, grads, copies)
            numbers = factor, *self.numbers(lr, step, decay)
            if compiled_update(self, decay != 0, numbers, weight, grads, states, copies):
                return
        for block in blocks(weight, summed(grads), states):
            block.scale(factor, self.clip_gradient)
            self._step(block, lr, step, decay)
        for copy in copies:
            copy[...] = weight

    def _checked(self, weight: Array, state: Mapping[str, Array]) -> tuple[str, ...]:
        for name in self.state_names:
            if name not in state or state[name].shape != weight.shape:
                got = state[name].shape if name in state else "nothing"
                raise ShapeError(
                    f"{self.name}: got {got} for the state {name!r} of a weight of shape "
                    f"{weight.shape}; make it with make_state"
                )
        return self.state_names

    def rests(self, weight_decay: float) -> bool:
        """Return whether a weight whose gradient is zero stays as it is, in every update."""
        return not weight_decay and not self.state_names

    def describe(self) -> dict[str, Any]:
        """Return name and numbers as plain data, fit for JSON and for `create`."""
        return {"name": self.name, **asdict(self)}
