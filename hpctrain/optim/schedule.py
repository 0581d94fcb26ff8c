"""Learning-rate schedules: frozen data, and a pure function of the step.

The step counts updates from 0. During the first ``warmup_steps`` updates the rate rises in a
straight line from ``warmup_begin_lr`` and reaches ``base_lr`` with the last of them; the
decay begins then.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from hpctrain.errors import ConfigError

__all__ = [
    "Constant", "Cosine", "Factor", "MultiFactor", "Poly", "Schedule", "from_description",
]  # fmt: skip


@dataclass(frozen=True)
class Schedule(ABC):
    """A learning rate for each step.

    Parameters
    ----------
    base_lr : float
        Rate at the end of the warm-up.
    warmup_steps : int
        Updates during which the rate rises; 0 for none.
    warmup_begin_lr : float
        Where it rises from.
    """

    base_lr: float = 0.01
    warmup_steps: int = 0
    warmup_begin_lr: float = 0.0

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        self._need(self.warmup_steps >= 0, "warmup_steps of at least 0")
        self._need(
            0 <= self.warmup_begin_lr <= self.base_lr or not self.warmup_steps,
            "warmup_begin_lr from 0 to base_lr",
        )

    def _need(self, right: bool, what: str) -> None:
        if not right:
            raise ConfigError(f"{self.kind} schedule: got {self}, needed {what}")

    @abstractmethod
    def decayed(self, step: int) -> float:
        """Return the rate ``step`` updates after the warm-up."""

    def lr(self, step: int) -> float:
        """Return the learning rate of the update number ``step``, counted from 0."""
        if step < self.warmup_steps:
            rise = (step + 1) / self.warmup_steps
            return self.warmup_begin_lr + (self.base_lr - self.warmup_begin_lr) * rise
        return self.decayed(step - self.warmup_steps)

    def __call__(self, step: int) -> float:
        """Return `lr` of ``step``."""
        return self.lr(step)

    def describe(self) -> dict[str, Any]:
        """Return kind and numbers as plain data, fit for JSON and for `from_description`."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {"kind": self.kind, **plain}


@dataclass(frozen=True)
class Constant(Schedule):
    """Stay at ``base_lr``."""

    kind: ClassVar[str] = "constant"

    def decayed(self, step: int) -> float:
        """Return ``base_lr``."""
        return self.base_lr


@dataclass(frozen=True)
class Factor(Schedule):
    """Multiply by ``factor`` every ``every`` updates, down to ``stop_lr``."""

    every: int = 1000
    factor: float = 0.1
    stop_lr: float = 0.0

    kind: ClassVar[str] = "factor"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._need(self.every > 0, "every of at least 1")

    def decayed(self, step: int) -> float:
        """Return the rate after ``step // every`` drops."""
        return max(self.stop_lr, self.base_lr * self.factor ** (step // self.every))


@dataclass(frozen=True)
class MultiFactor(Schedule):
    """Multiply by ``factor`` at each of ``steps``, counted with the warm-up, as MXNet does."""

    steps: tuple[int, ...] = ()
    factor: float = 0.1

    kind: ClassVar[str] = "multi_factor"

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        super().__post_init__()
        rising = all(a < b for a, b in zip(self.steps, self.steps[1:], strict=False))
        self._need(rising, "steps that rise")

    def decayed(self, step: int) -> float:
        """Return the rate after the drops that lie behind ``step``."""
        passed = sum(step + self.warmup_steps >= at for at in self.steps)
        return self.base_lr * self.factor**passed


@dataclass(frozen=True)
class _Falling(Schedule):
    """Fall from ``base_lr`` to ``final_lr`` at update ``total_steps``, then stay there."""

    total_steps: int = 1000
    final_lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._need(self.total_steps > self.warmup_steps, "total_steps beyond the warm-up")

    @abstractmethod
    def share(self, progress: float) -> float:
        """Return the part of the way down still ahead, 1 to 0, for ``progress`` 0 to 1."""

    def decayed(self, step: int) -> float:
        """Return the rate at this part of the way from ``base_lr`` to ``final_lr``."""
        progress = min(1.0, step / (self.total_steps - self.warmup_steps))
        return self.final_lr + (self.base_lr - self.final_lr) * self.share(progress)


@dataclass(frozen=True)
class Cosine(_Falling):
    """Fall along half a cosine wave.

    References
    ----------
    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017.
    """

    kind: ClassVar[str] = "cosine"

    def share(self, progress: float) -> float:
        """Return ``(1 + cos(pi progress)) / 2``."""
        return (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class Poly(_Falling):
    """Fall like ``(1 - progress) ** power``."""

    power: float = 2.0

    kind: ClassVar[str] = "poly"

    def share(self, progress: float) -> float:
        """Return ``(1 - progress) ** power``."""
        return float((1 - progress) ** self.power)


_KINDS: dict[str, type[Schedule]] = {
    kind.kind: kind for kind in (Constant, Factor, MultiFactor, Cosine, Poly)
}


def from_description(description: dict[str, Any]) -> Schedule:
    """Make the schedule that `Schedule.describe` described.

    Raises
    ------
    ConfigError
        If the kind or a field is unknown, or a value out of range.
    """
    args = dict(description)
    kind = args.pop("kind", None)
    if kind not in _KINDS:
        raise ConfigError(f"schedule: got kind {kind!r}, needed one of {', '.join(_KINDS)}")
    known = [field.name for field in fields(_KINDS[kind])]
    for arg in args:
        if arg not in known:
            raise ConfigError(f"{kind} schedule: got {arg!r}, needed one of {', '.join(known)}")
    return _KINDS[kind](**args)
