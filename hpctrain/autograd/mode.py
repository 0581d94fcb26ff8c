"""What the running thread is doing: recording or not, training or not, eager or capturing.

The state belongs to the thread (a context variable), so that a worker of the engine never
sees the mode of the thread that feeds it.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hpctrain.autograd.primitive import Primitive, Spec

__all__ = [
    "Interpreter", "capturing", "current", "interpreted_by", "is_recording", "is_training",
    "pause", "predict_mode", "record", "train_mode",
]  # fmt: skip


class Interpreter(Protocol):
    """Gives an operation its meaning: run it now, or add it to a graph."""

    def apply(
        self,
        row: Primitive,
        inputs: Sequence[Any],
        attrs: dict[str, Any],
        specs: Sequence[Spec],
    ) -> Sequence[Any]:
        """Return the values of the outputs: arrays, or names of graph values."""

    def assign(self, target: Any, source: Any) -> None:
        """Let the state tensor ``target`` hold ``source`` from now on."""

    def kept(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return ``inputs`` of an operation as the tape is to keep them."""

    def beside(self, values: Sequence[Any]) -> AbstractContextManager[Any]:
        """Return the scope for the gradient rule of the operation that gave ``values``."""


@dataclass(frozen=True, slots=True)
class Mode:
    """The state of one thread; ``interpreter`` None means eager."""

    recording: bool = False
    training: bool = False
    interpreter: Interpreter | None = None


_MODE: ContextVar[Mode] = ContextVar("hpctrain_mode", default=Mode())  # noqa: B039 (frozen)
current = _MODE.get


@contextmanager
def _changed(**changes: Any) -> Iterator[None]:
    token = _MODE.set(replace(_MODE.get(), **changes))
    try:
        yield
    finally:
        _MODE.reset(token)


def record(train_mode: bool = True) -> Any:
    """Record operations for `backward` inside the ``with`` block, in training mode."""
    return _changed(recording=True, training=train_mode)


def pause(train_mode: bool = False) -> Any:
    """Do not record inside the ``with`` block."""
    return _changed(recording=False, training=train_mode)


def train_mode() -> Any:
    """Let dropout and batch normalisation behave as in training, recording or not."""
    return _changed(training=True)


def predict_mode() -> Any:
    """Let dropout and batch normalisation behave as in inference, recording or not."""
    return _changed(training=False)


def interpreted_by(interpreter: Interpreter | None) -> Any:
    """Hand every operation inside the ``with`` block to ``interpreter``."""
    return _changed(interpreter=interpreter)


def is_recording() -> bool:
    """Return whether operations are recorded for `backward`."""
    return _MODE.get().recording


def is_training() -> bool:
    """Return whether layers behave as in training."""
    return _MODE.get().training


def capturing() -> bool:
    """Return whether operations go into a graph instead of being run."""
    return _MODE.get().interpreter is not None
