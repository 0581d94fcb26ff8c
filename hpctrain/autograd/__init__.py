"""Automatic differentiation: the primitive table, tensors, the tape, and reverse mode.

An operation is a row of the table (`primitive`). It is applied through one door (`bind`),
which runs it at once or hands it to whoever is capturing a graph, and records it on the
tape if gradients are wanted. `backward` walks the tape and applies the gradient rules,
which are themselves written in primitives, through the same door. So eager execution and
graphs share every kernel and every gradient, and gradients of gradients come for free.

The package knows no operation by itself, but for ``add``, ``ones_like`` and
``zeros_like``, which the walk needs; the rows are in `hpctrain.ops`.

The words are MXNet's: ``with record(): loss = f(x)``, ``loss.backward()``, ``x.grad``.
"""

from hpctrain.autograd.backward import backward, grad
from hpctrain.autograd.bind import apply, apply_row, as_tensor, assign
from hpctrain.autograd.gradcheck import check_gradients
from hpctrain.autograd.mode import (
    is_recording,
    is_training,
    pause,
    predict_mode,
    record,
    train_mode,
)
from hpctrain.autograd.primitive import PRIMITIVES, Primitive, Spec, primitive, register
from hpctrain.autograd.tensor import Tensor

__all__ = [
    "PRIMITIVES", "Primitive", "Spec", "Tensor", "apply", "apply_row", "as_tensor", "assign",
    "backward", "check_gradients", "grad", "is_recording", "is_training", "pause",
    "predict_mode", "primitive", "record", "register", "train_mode",
]  # fmt: skip
