"""Optimizers over flat slices: one pass in blocks that stay in cache, in place."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from hpctrain.backend import Array
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.optim.flat import Block, blocks

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "create"]


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

    @property
    @abstractmethod
    def state_names(self) -> tuple[str, ...]:
        """Names of the arrays that this optimizer keeps for each slice."""

    @abstractmethod
    def _step(self, block: "Block", lr: float, step: int, weight_decay: float) -> None:
        """Update one block, whose gradient is scaled and clipped already."""

    def make_state(
        self, n: int, dtype: Any = np.float32, xp: ModuleType = np
    ) -> dict[str, Array]:
        """Return the state before the first update: zeros of shape (n,) by name."""
        return {name: xp.zeros(n, dtype) for name in self.state_names}

    def update(  # noqa: PLR0913 (four arrays and the numbers that change between calls)
        self,
        weight: Array,
        grad: Array,
        state: Mapping[str, Array],
        *,
        lr: float,
        step: int,
        weight_decay: float | None = None,
        scale: float = 1.0,
    ) -> None:
        """Update ``weight`` and ``state`` in place.

        Parameters
        ----------
        weight, grad : array, shape (n,), one float dtype and device
            ``grad`` is not changed.
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
        for block in blocks(weight, grad, [state[s] for s in self._checked(weight, state)]):
            block.scale(self.rescale_grad * scale, self.clip_gradient)
            self._step(block, lr, step, decay)

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


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, by PyTorch's formulas.

    With ``g`` the scaled gradient plus ``weight_decay * w``: ``v = momentum * v + g``, then
    ``w -= lr * v``, or with ``nesterov`` ``w -= lr * (g + momentum * v)``. (MXNet keeps
    ``lr * v`` instead, so that the two part after a change of the learning rate.)
    """

    momentum: float = 0.0
    nesterov: bool = False

    name: ClassVar[str] = "sgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1 or (self.nesterov and not self.momentum):
            raise ConfigError(
                f"sgd: got momentum {self.momentum}, needed at least 0 and less than 1, and "
                "more than 0 with nesterov"
            )

    @property
    def state_names(self) -> tuple[str, ...]:
        """``momentum``, unless it is zero."""
        return ("momentum",) if self.momentum else ()

    def _step(self, block: Block, lr: float, step: int, weight_decay: float) -> None:
        xp = block.xp
        block.add(block.weight, weight_decay)
        direction = block.grad
        if self.momentum:
            (velocity,) = block.states
            xp.multiply(velocity, self.momentum, out=velocity)
            xp.add(velocity, block.grad, out=velocity)
            direction = velocity
        if self.nesterov:
            block.add(velocity, self.momentum)
            direction = block.grad
        xp.multiply(direction, lr, out=block.spare)
        xp.subtract(block.weight, block.spare, out=block.weight)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with bias correction; the weight decay is a part of the gradient.

    References
    ----------
    Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    """

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    name: ClassVar[str] = "adam"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.epsilon > 0):
            raise ConfigError(
                f"{self.name}: got beta1 {self.beta1}, beta2 {self.beta2} and epsilon "
                f"{self.epsilon}, needed 0 <= beta < 1 and epsilon > 0"
            )

    @property
    def state_names(self) -> tuple[str, ...]:
        """Running means of the gradient and of its square."""
        return ("mean", "variance")

    def _decay(self, block: Block, lr: float, weight_decay: float) -> None:
        block.add(block.weight, weight_decay)

    def _step(self, block: Block, lr: float, step: int, weight_decay: float) -> None:
        self._decay(block, lr, weight_decay)
        xp, grad, spare = block.xp, block.grad, block.spare
        mean, variance = block.states
        xp.multiply(grad, 1 - self.beta1, out=spare)
        xp.multiply(mean, self.beta1, out=mean)
        xp.add(mean, spare, out=mean)
        xp.multiply(grad, grad, out=spare)
        xp.multiply(spare, 1 - self.beta2, out=spare)
        xp.multiply(variance, self.beta2, out=variance)
        xp.add(variance, spare, out=variance)
        # w -= lr/c1 * mean / (sqrt(variance/c2) + eps), both sides of the quotient times
        # sqrt(c2), which saves one pass
        c1, root2 = 1 - self.beta1 ** (step + 1), (1 - self.beta2 ** (step + 1)) ** 0.5
        xp.sqrt(variance, out=spare)
        xp.add(spare, self.epsilon * root2, out=spare)
        xp.divide(mean, spare, out=spare)
        xp.multiply(spare, lr * root2 / c1, out=spare)
        xp.subtract(block.weight, spare, out=block.weight)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: ``w *= 1 - lr * weight_decay`` before each step.

    References
    ----------
    Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.
    """

    weight_decay: float = 0.01

    name: ClassVar[str] = "adamw"

    def _decay(self, block: Block, lr: float, weight_decay: float) -> None:
        if weight_decay:
            block.xp.multiply(block.weight, 1 - lr * weight_decay, out=block.weight)


_KINDS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (SGD, Adam, AdamW)}
_MXNET = {"learning_rate": "lr", "wd": "weight_decay"}


def create(name: str | Optimizer, **args: Any) -> Optimizer:
    """Make an optimizer by name.

    Parameters
    ----------
    name : {"sgd", "nag", "adam", "adamw"} or Optimizer
        Any case; ``nag`` is ``sgd`` with ``nesterov``. An optimizer is returned as it is.
    **args
        Fields of the class; MXNet's ``learning_rate`` and ``wd`` are taken as well.

    Raises
    ------
    ConfigError
        If the name or an argument is unknown, or a value out of range.
    """
    if isinstance(name, Optimizer):
        return name
    key = name.lower()
    if key == "nag":
        key, args = "sgd", {"nesterov": True, "momentum": 0.9, **args}
    if key not in _KINDS:
        raise ConfigError(
            f"optimizer: got {name!r}, needed one of {', '.join(sorted([*_KINDS, 'nag']))}"
        )
    args = {_MXNET.get(arg, arg): value for arg, value in args.items()}
    known = [field.name for field in fields(_KINDS[key])]
    for arg in args:
        if arg not in known:
            raise ConfigError(f"{key}: got {arg!r}, needed one of {', '.join(known)}")
    return _KINDS[key](**args)
