"""From a configuration to the parts of a run. The only place that knows both."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hpctrain import backend, models, nn, optim
from hpctrain.cli.fitting import batch_specs, try_records
from hpctrain.comm.group import Group
from hpctrain.comm.guard import agreed
from hpctrain.comm.progress import Log
from hpctrain.comm.world import World
from hpctrain.config import Config
from hpctrain.engine import Engine
from hpctrain.errors import ConfigError, DataError
from hpctrain.graph.budget import Memory
from hpctrain.graph.native import fuses
from hpctrain.io import Loader, Plan, RandomShift, Records, open_records, refuse
from hpctrain.ops.dnnl_narrow import lacking
from hpctrain.parallel.program import Objective, count_correct
from hpctrain.parallel.together import Combine
from hpctrain.parallel.work import LAG, Options

__all__ = [
    "Data",
    "loader",
    "memory",
    "narrows",
    "objective",
    "open_data",
    "optimizer",
    "options",
    "schedule",
    "steps_per_epoch",
    "together",
]  # fmt: skip

MIB = 2**20
LOSSES: Mapping[str, Any] = MappingProxyType(  # by name: the loss, and what counts hits
    {
        "softmax_cross_entropy": (nn.SoftmaxCrossEntropyLoss, count_correct),
        "masked_softmax_cross_entropy": (
            nn.MaskedSoftmaxCrossEntropyLoss, models.count_tokens
        ),
        "mse": (nn.MSELoss, None),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Data:
    """The records of a run."""

    train: Records
    test: Records


def open_data(config: Config, world: World, verify: bool = True) -> Data:
    """Open and check the records; collective. Without ``verify`` no record is read for it.

    Raises
    ------
    DataError
        On all ranks, naming every damaged file, or a path without any record.
    """

    def opened(path: str) -> Records:
        records = open_records(
            path,
            inputs=config.data.inputs,
            targets=config.data.targets,
            cache_bytes=config.data.cache_mib * MIB,
        )
        if not records.n:
            raise DataError(f"{path}: got no records, needed at least 1; check the data path")
        return records

    data = agreed(
        world.control, lambda: Data(opened(config.data.train), opened(config.data.test))
    )
    if config.data.verify and verify:
        found = agreed(
            world.control,
            lambda: [
                p for r in (data.train, data.test) for p in r.verify(world.rank, world.size)
            ],
        )
        rows = world.control.allgather_obj(found)
        refuse(sorted({problem for row in rows for problem in row}))
    return data


def loader(
    config: Config,
    records: Records,
    world: World,
    engine: Engine | None,
    training: bool,
    share: tuple[int, int] | None = None,
) -> Loader:
    """Make the loader of this rank; ``share`` is its part of each batch, and of how many."""
    batch = config.data.batch if training else config.data.test_batch
    plan = Plan(
        records.n,
        max(1, min(batch, records.n)),
        config.run.seed,
        records.grain,
        records.window,
        shuffle=training,
    )
    shift = config.data.shift if training else 0
    depth, together = config.data.prefetch, config.data.accumulate if training else 1
    # All batches of a step are asked for before it is pushed; then tasks that name a batch keep
    # it, or, without reading ahead, nothing does until the step is over.
    hold = max(depth, together - 1) if depth else (LAG + 1) * together - 1
    return Loader(
        records,
        plan,
        *(share or (world.rank, world.size)),
        engine if depth else None,
        max(1, depth),
        config.device.dtype,
        RandomShift(shift, config.run.seed) if shift else None,
        unit=shard(config) or 1,
        hold=hold,
    )


def steps_per_epoch(config: Config, plan: Plan) -> int:
    """Return the steps that the batches of an epoch make."""
    return -(-plan.steps // config.data.accumulate)


def shard(config: Config) -> int:
    """Return the samples of a virtual shard, 0 for none."""
    return config.exchange.shard if config.exchange.reproducible == "ranks" else 0


def threads(config: Config) -> int:
    """Return how many threads a rank is to have, 0 for as many as it has cores.

    Products round differently on several threads: equal bits on any ranks need as many on all.
    """
    return config.device.threads or (1 if shard(config) else 0)


def memory(config: Config) -> Memory:
    """Return what a step may keep for its backward part."""
    text = config.memory.budget
    units = {"KiB": 2**10, "MiB": MIB, "GiB": 2**30, "TiB": 2**40}
    budget = int(float(text[:-3]) * units[text[-3:]]) if text else 0
    return Memory(config.memory.recompute, budget)


def together(
    config: Config, group: Group, pause_s: float = 0.0, log: Log | None = None
) -> Combine | None:
    """Make what takes batch statistics over all ranks of a group, if they are to be shared.

    Collective, on the main thread.
    """
    if not config.parallel.sync_bn:
        return None
    return Combine(group, pause_s, log=log) if group.size > 1 else None


def options(config: Config, overlap: bool, pause_s: float) -> Options:
    """Return how steps are carried out."""
    return Options(
        overlap=overlap,
        pause_s=pause_s,
        clip_norm=config.optim.clip_norm,
        shard=shard(config),
        sharded=config.optim.sharded,
        skip=config.optim.nonfinite == "skip",
        loss_scale=config.optim.loss_scale,
        accumulate=config.data.accumulate,
        memory=memory(config),
        fuse=fuses(config.graph.fuse),
    )


def objective(
    config: Config,
    loader: Loader,
    device: backend.Device,
    combine: Combine | None = None,
    start: Callable[[nn.Block], object] | None = None,
) -> tuple[nn.Block, Objective]:
    """Make the model, initialised, and what is to be made small.

    ``combine`` is what its batch normalisations share with other ranks, if they do; ``start``
    initialises it in another way.

    Raises
    ------
    ConfigError
        If the model does not take the records of ``loader``, or has no batch normalisation
        that could be over all ranks; if bfloat16 is asked for and cannot be had here.
    """
    net = models.create(config.model.name, **config.model.args)
    if config.parallel.sync_bn and not nn.convert_sync_batch_norm(net, combine):
        raise ConfigError(
            f"parallel.sync_bn: got true for model {config.model.name}, which has no layer "
            "nn.BatchNorm; set it to false"
        )
    if start is not None:
        start(net)
    else:
        net.initialize(ctx=device, seed=config.run.seed)
        if config.device.dtype != "float32":
            net.cast(config.device.dtype)
    make, count = LOSSES[config.loss.name]
    goal = Objective(net, make(), count, combine, narrows(config, device))
    try_records(config, goal, batch_specs(loader, 1), device)
    return net, goal


def narrows(config: Config, device: backend.Device) -> bool:
    """Return whether products are to be of bfloat16; refuse what this host cannot do."""
    wanted = config.device.precision == "bf16"
    if wanted and (missing := lacking(device)):
        raise ConfigError(
            f"device.precision: got bf16 on {device}, needed {missing}; set it to float32"
        )
    return wanted


def optimizer(config: Config) -> optim.Optimizer:
    """Make the optimizer."""
    o = config.optim
    shared: dict[str, Any] = {
        "lr": o.lr, "weight_decay": o.weight_decay, "nesterov": o.nesterov
    }  # fmt: skip
    if o.name == "sgd":
        return optim.SGD(momentum=o.momentum, **shared)
    kind = optim.Adam if o.name == "adam" else optim.AdamW
    return kind(beta1=o.beta1, beta2=o.beta2, epsilon=o.eps, **shared)


def schedule(config: Config, steps_per_epoch: int) -> optim.Schedule:
    """Make the learning-rate schedule; the configuration counts in epochs, this in steps."""
    o = config.optim
    warmup = round(o.warmup * steps_per_epoch)
    total = config.run.epochs * steps_per_epoch
    if config.run.max_steps:
        total = min(total, config.run.max_steps)
    shared: dict[str, Any] = {"base_lr": o.lr, "warmup_steps": warmup}
    if o.schedule == "constant":
        return optim.Constant(**shared)
    if o.schedule == "step":
        return optim.Factor(
            every=o.step_every * steps_per_epoch, factor=o.step_factor, **shared
        )
    final = o.lr * o.final_lr_fraction
    return optim.Cosine(total_steps=max(total, warmup + 1), final_lr=final, **shared)
