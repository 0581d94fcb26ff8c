"""The optimizers, as formulas that are compiled and as passes over blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from hpctrain.autograd.element import Element, sqrt
from hpctrain.errors import ConfigError
from hpctrain.optim.flat import Block
from hpctrain.optim.optimizer import Optimizer

__all__ = ["SGD", "Adam", "AdamW", "create"]


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

    def ahead(self) -> "SGD | None":
        """Return the same with Nesterov's momentum; None without momentum."""
        return replace(self, nesterov=True) if self.momentum else None

    @property
    def state_names(self) -> tuple[str, ...]:
        """``momentum``, unless it is zero."""
        return ("momentum",) if self.momentum else ()

    def formula(
        self, weight: Element, grad: Element, states: Sequence[Element], numbers: Any
    ) -> list[Element]:
        """Return the new velocity, if there is one, and the new weight."""
        decay, lr = numbers
        if decay is not None:
            grad = grad + weight * decay
        if not self.momentum:
            return [weight - grad * lr]
        velocity = states[0] * self.momentum + grad
        direction = grad + velocity * self.momentum if self.nesterov else velocity
        return [velocity, weight - direction * lr]

    def numbers(self, lr: float, step: int, weight_decay: float) -> tuple[float, ...]:
        """Return weight decay and learning rate."""
        return weight_decay, lr

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

    With ``nesterov`` the mean is taken one step ahead, as in NAdam without its schedule of
    the momentum.

    References
    ----------
    Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    Dozat, "Incorporating Nesterov momentum into Adam", ICLR workshop 2016.
    """

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    nesterov: bool = False

    name: ClassVar[str] = "adam"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.epsilon > 0):
            raise ConfigError(
                f"{self.name}: got beta1 {self.beta1}, beta2 {self.beta2} and epsilon "
                f"{self.epsilon}, needed 0 <= beta < 1 and epsilon > 0"
            )

    def ahead(self) -> "Adam":
        """Return the same with Nesterov's momentum."""
        return replace(self, nesterov=True)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Running means of the gradient and of its square."""
        return ("mean", "variance")

    def formula(
        self, weight: Element, grad: Element, states: Sequence[Element], numbers: Any
    ) -> list[Element]:
        """Return the new means, and the new weight."""
        decay, keep, small, rate, lead = numbers
        if decay is not None:
            grad, weight = self._decayed(grad, weight, decay, keep)
        mean = states[0] * self.beta1 + grad * (1 - self.beta1)
        variance = states[1] * self.beta2 + grad * grad * (1 - self.beta2)
        direction = mean * lead + grad * (1 - self.beta1) if self.nesterov else mean
        return [mean, variance, weight - direction / (sqrt(variance) + small) * rate]

    def numbers(self, lr: float, step: int, weight_decay: float) -> tuple[float, ...]:
        """Return weight decay, what it leaves, epsilon, rate and the mean's part of the step.

        Epsilon, rate and part are those with the corrections.
        """
        c1, root2 = 1 - self.beta1 ** (step + 1), (1 - self.beta2 ** (step + 1)) ** 0.5
        lead = self.beta1 * c1 / (1 - self.beta1 ** (step + 2))
        return weight_decay, 1 - lr * weight_decay, self.epsilon * root2, lr * root2 / c1, lead

    def _decayed(
        self, grad: Element, weight: Element, decay: Element, keep: Element
    ) -> tuple[Element, Element]:
        return grad + weight * decay, weight

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
        *_, small, rate, lead = self.numbers(lr, step, weight_decay)
        direction = mean
        if self.nesterov:
            block.scale(1 - self.beta1, None)
            block.add(mean, lead)
            direction = block.grad
        xp.sqrt(variance, out=spare)
        xp.add(spare, small, out=spare)
        xp.divide(direction, spare, out=spare)
        xp.multiply(spare, rate, out=spare)
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

    def _decayed(
        self, grad: Element, weight: Element, decay: Element, keep: Element
    ) -> tuple[Element, Element]:
        return grad, weight * keep

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
