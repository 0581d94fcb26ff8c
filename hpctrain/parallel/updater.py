"""An optimizer with memory: counts updates and keeps state, key by key.

This is what a store runs on the sum of the gradients, and what a trainer runs without a
store. Every rank runs it on the same sums, so the ranks' weights stay equal.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpctrain import optim
from hpctrain.autograd import Tensor
from hpctrain.backend import to_device, to_host
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.optim import Optimizer

__all__ = ["Key", "Updater"]

Key = str | int
_STEPS = "steps"


class Updater:
    """Updates weights by key.

    Parameters
    ----------
    optimizer : str or Optimizer
        A name takes ``args``.
    **args
        Of the optimizer; ``lr_scheduler`` is a function of the step, such as a
        `hpctrain.optim.Schedule`.

    Attributes
    ----------
    lr : float
        Learning rate where there is no schedule; may be set at any time.
    schedule : callable ``step -> rate`` or None
    scale : float
        Factor on gradients, on top of the optimizer's ``rescale_grad``.
    lr_mult, wd_mult : dict of key to float
        Factors on learning rate and weight decay; 1 where nothing is said.
    """

    def __init__(self, optimizer: str | Optimizer, **args: Any) -> None:
        self.schedule: Callable[[int], float] | None = args.pop("lr_scheduler", None)
        if args and isinstance(optimizer, Optimizer):
            raise ConfigError(
                f"optimizer: got {', '.join(args)} beside an optimizer; set them in it"
            )
        self.optimizer = optim.create(optimizer, **args)
        self.lr = self.optimizer.lr
        self.scale = 1.0
        self.lr_mult: dict[Key, float] = {}
        self.wd_mult: dict[Key, float] = {}
        self._states: dict[Key, dict[str, Any]] = {}
        self._steps: dict[Key, int] = {}

    @property
    def num_update(self) -> int:
        """How many updates the key with the most has had."""
        return max(self._steps.values(), default=0)

    def learning_rate(self, step: int | None = None) -> float:
        """Return the rate of an update, counted from 0; the next one if None."""
        if self.schedule is None:
            return self.lr
        return float(self.schedule(self.num_update if step is None else step))

    def __call__(self, key: Key, grad: Tensor, weight: Tensor) -> None:
        """Update ``weight`` in place; both on one device."""
        flat, xp = weight.array.reshape(-1), weight.device.module
        if key not in self._states:
            self._states[key] = self.optimizer.make_state(flat.size, flat.dtype, xp)
        step = self._steps.get(key, 0)
        self._steps[key] = step + 1
        self.optimizer.update(
            flat,
            xp.ascontiguousarray(grad.array).reshape(-1),
            self._states[key],
            lr=self.learning_rate(self.num_update - 1) * self.lr_mult.get(key, 1.0),
            step=step,
            weight_decay=self.optimizer.weight_decay * self.wd_mult.get(key, 1.0),
            scale=self.scale,
        )

    def rows(self, key: Key, numbers: Any, grad: Any, weight: Tensor) -> None:
        """Update some rows in place; the others, and what is kept for them, stay.

        Parameters
        ----------
        key : Key
        numbers : array of int64, shape (m,)
            Each once.
        grad : array, shape (m, width)
        weight : Tensor, shape (rows, width), on the host
        """
        if key not in self._states:
            self._states[key] = self.optimizer.make_state(weight.size, weight.dtype)
        height = weight.shape[0]
        whole = {n: a.reshape(height, -1) for n, a in self._states[key].items()}
        weights = weight.array.reshape(height, -1)
        flat = weights[numbers].reshape(-1)
        state = {name: array[numbers].reshape(-1) for name, array in whole.items()}
        step = self._steps.get(key, 0)
        self._steps[key] = step + 1
        self.optimizer.update(
            flat,
            np.ascontiguousarray(grad).reshape(-1),
            state,
            lr=self.learning_rate(self.num_update - 1) * self.lr_mult.get(key, 1.0),
            step=step,
            weight_decay=self.optimizer.weight_decay * self.wd_mult.get(key, 1.0),
            scale=self.scale,
        )
        weights[numbers] = flat.reshape(grad.shape)
        for name, array in whole.items():
            array[numbers] = state[name].reshape(grad.shape)

    def state(self) -> dict[str, np.ndarray]:
        """Return counts and state as host arrays, named ``key/name``."""
        found: dict[str, np.ndarray] = {}
        for key, step in self._steps.items():
            found[f"{key}/{_STEPS}"] = np.array(step, np.int64)
            for name, array in self._states[key].items():
                found[f"{key}/{name}"] = to_host(array)
        return found

    def restore(self, arrays: Mapping[str, np.ndarray], weights: Mapping[Key, Tensor]) -> None:
        """Take what `state` returned, for the weights that it belongs to.

        Raises
        ------
        CheckpointError
            If it belongs to another optimizer or other weights.
        """
        keys = {str(key): key for key in weights}
        steps: dict[Key, int] = {}
        states: dict[Key, dict[str, Any]] = {}
        for whole, array in arrays.items():
            text, _, name = whole.rpartition("/")
            key = keys.get(text)
            if key is None or (name != _STEPS and array.size != weights[key].size):
                raise CheckpointError(
                    f"optimizer states: got {whole!r} of {array.size} elements, which fits no "
                    "weight here; load the states of the same model"
                )
            if name == _STEPS:
                steps[key] = int(array)
            else:
                device = weights[key].device
                states.setdefault(key, {})[name] = to_device(np.array(array), device)
        for key in steps:
            names = tuple(states.setdefault(key, {}))
            if set(names) != set(self.optimizer.state_names):
                raise CheckpointError(
                    f"optimizer states: got {', '.join(names) or 'none'} for {key!r}, needed "
                    f"{', '.join(self.optimizer.state_names) or 'none'}; use the same optimizer"
                )
        self._steps, self._states = steps, states
