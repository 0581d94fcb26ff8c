"""Whether a model takes the records of a run."""

from collections.abc import Sequence

import numpy as np

from hpctrain import nn
from hpctrain.autograd import Spec, Tensor
from hpctrain.backend import Device
from hpctrain.comm.guard import agreed
from hpctrain.comm.world import World
from hpctrain.config import Config
from hpctrain.errors import ConfigError, HpctrainError
from hpctrain.io import Loader
from hpctrain.parallel.evaluate import Evaluator
from hpctrain.parallel.program import Objective

__all__ = ["batch_specs", "check_test", "try_records"]

Specs = tuple[Sequence[Spec], Sequence[Spec]]


def batch_specs(loader: Loader, count: int) -> Specs:
    """Return the specs of inputs and targets of a batch of ``count`` records."""
    records = loader.records
    buffers = records.buffers(count, loader.dtype)
    return tuple(
        [Spec.of(buffers[field.name]) for field in fields]
        for fields in (records.inputs, records.targets)
    )  # type: ignore[return-value]


def try_records(config: Config, goal: Objective, specs: Specs, device: Device) -> None:
    """Give a model a batch of zeros, which completes its shapes.

    Raises
    ------
    ConfigError
        If it does not take that, or makes losses of another type than the run's.
    """
    inputs, targets = (
        [Tensor(np.zeros(s.shape, s.dtype), device=device) for s in given] for given in specs
    )
    shapes, name = ", ".join(str(t.spec) for t in (*inputs, *targets)), config.model.name
    try:
        if isinstance(goal.net, nn.Block):
            goal.net.complete_shapes(*inputs)
        losses = goal(inputs, targets)[0]
    except HpctrainError as error:
        raise ConfigError(
            f"model {name}: does not take a batch of {shapes}: {error}; change [model], [loss] "
            "or [data]"
        ) from error
    if losses.dtype != np.dtype(config.device.dtype):
        raise ConfigError(
            f"model {name}: makes losses of {losses.dtype} from a batch of {shapes}, needed "
            f"{config.device.dtype}; store the inputs as floats, or write them by "
            "hpctrain.io.ShardWriter with a scale"
        )


def check_test(
    config: Config, world: World, train: Loader, test: Loader, whole: Evaluator | None
) -> None:
    """Refuse test records that the model does not take, before it is trained; collective.

    Parameters
    ----------
    config : Config
    world : World
    train, test : Loader
    whole : Evaluator, optional
        Whose model is tried with what is not like the records to train on. Ranks that share
        a model have none, and such records are refused.

    Raises
    ------
    ConfigError
        On all ranks.
    """
    wanted, given = batch_specs(train, 1), batch_specs(test, 1)

    def check() -> None:
        if given == wanted:
            return
        if whole is not None:
            try_records(config, whole.objective, given, whole.state.device)
            return
        texts = [", ".join(map(str, (*specs[0], *specs[1]))) for specs in (given, wanted)]
        raise ConfigError(
            f"data.test: got batches of {texts[0]}, needed {texts[1]}, as in data.train; "
            "change either"
        )

    agreed(world.control, check)
