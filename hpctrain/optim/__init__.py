"""Optimizers, learning-rate schedules and gradient clipping.

All three are functions of plain numbers and flat arrays. An optimizer does not know
parameters: it is given 1-D slices of the flat buffers that hold weights, gradients and its
own state, and changes weights and state in place, in one pass, so that the caller may update
whichever slice has its gradient first, on whichever rank owns it. A schedule is a pure
function of the step, and so is the same on every rank and after a restart. Clipping is split
into the part that is summed over ranks and the part that is not.

Steps are counted from 0: ``step`` is the number of updates made before this one.

    sgd = optim.create("sgd", learning_rate=0.1, momentum=0.9)
    state = sgd.make_state(weight.size, weight.dtype, numpy)
    sgd.update(weight, grad, state, lr=schedule.lr(step), step=step)
"""

from hpctrain.optim.clip import clip_scale, finite, sum_of_squares
from hpctrain.optim.kinds import SGD, Adam, AdamW, create
from hpctrain.optim.optimizer import Optimizer
from hpctrain.optim.scale import LossScale
from hpctrain.optim.schedule import (
    Constant,
    Cosine,
    Factor,
    MultiFactor,
    Poly,
    Schedule,
    from_description,
)

__all__ = [
    "SGD", "Adam", "AdamW", "Constant", "Cosine", "Factor", "LossScale", "MultiFactor",
    "Optimizer", "Poly", "Schedule", "clip_scale", "create", "finite", "from_description",
    "sum_of_squares",
]  # fmt: skip
