"""What ``graph`` and ``summary`` look at: a model, its loss, and batches as one rank has."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpctrain import models, nn, optim
from hpctrain.autograd import Spec, Tensor
from hpctrain.backend import CPU
from hpctrain.cli import build
from hpctrain.cli.fitting import batch_specs
from hpctrain.config import load, split
from hpctrain.errors import ConfigError
from hpctrain.graph.budget import Memory
from hpctrain.graph.ir import Graph
from hpctrain.graph.plan import Plan as ArenaPlan
from hpctrain.io import Loader, Plan, open_records
from hpctrain.io.sampler import part
from hpctrain.parallel.pieces import of_samples
from hpctrain.parallel.program import (
    Objective,
    StepDefinition,
    count_correct,
    evaluation_graph,
    evaluation_plan,
    training_graph,
)

__all__ = ["Subject", "divide", "of_model", "of_words"]

Specs = tuple[Sequence[Spec], Sequence[Spec]]


@dataclass(frozen=True)
class Subject:
    """A model as a run would train it, on the CPU.

    Attributes
    ----------
    name : str
    net : Block
        Initialised.
    objective : Objective
    specs : (specs of the inputs, specs of the targets)
        Of the batch of rank 0.
    batch : int
        Samples of rank 0.
    optimizer : Optimizer
    memory : Memory
        What a step may keep for its backward part.
    batch_axis : int
        The axis of inputs and targets that counts samples.
    """

    name: str
    net: nn.Block
    objective: Objective
    specs: Specs
    batch: int
    optimizer: optim.Optimizer
    memory: Memory
    batch_axis: int = 0

    def leaves(self) -> dict[str, Tensor]:
        """Return all parameters and layer state by structural name."""
        return {n: p.data() for n, p in self.net.collect_params().items()}

    def wanted(self) -> dict[str, Tensor]:
        """Return the trained parameters by structural name."""
        found = self.net.collect_params().items()
        return {n: p.data() for n, p in found if p.grad_req != "null"}

    def step(self) -> StepDefinition:
        """Return what a step is planned from."""
        leaves, wanted = list(self.leaves().values()), list(self.wanted().values())
        return StepDefinition(self.objective, self.specs, leaves, wanted, memory=self.memory)

    def graph(self, training: bool) -> Graph:
        """Capture a step of training, or of evaluation; leaves have their structural names."""
        graph = (training_graph if training else evaluation_graph)(self.step())
        names = dict(zip(graph.leaves, self.leaves(), strict=True))
        return replace(graph, names={**graph.names, **names})

    def inference(self, samples: int) -> ArenaPlan:
        """Plan the evaluation of that many samples."""
        inputs, targets = (of_samples(s, samples, self.batch_axis) for s in self.specs)
        return evaluation_plan(replace(self.step(), specs=(inputs, targets)))


def of_model(name: str, batch: int = 0, small: bool = False) -> Subject:
    """Return a workload of the zoo, trained by SGD with momentum.

    Parameters
    ----------
    name : str
    batch : int
        Samples of one rank; that of the workload if 0.
    small : bool
        In sizes for a quick look.
    """
    work = models.small_workload(name, batch) if small else models.workload(name, batch)
    work.net.initialize(ctx=CPU, seed=0)
    inputs, targets = work.make(np.random.default_rng(0))
    correct = count_correct if targets.dtype.kind == "i" else None
    goal = Objective(work.net, work.loss, correct)
    specs = ([Spec.of(inputs)], [Spec.of(targets)])
    sgd = optim.SGD(momentum=0.9)
    return Subject(name, work.net, goal, specs, work.batch, sgd, Memory(), work.batch_axis)


def divide(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part the settings of a configuration, ``--section.key value``, from all other words.

    Examples
    --------
    >>> divide(["run.toml", "--batch", "4", "--optim.lr", "0.1", "--run.epochs=2"])
    (['run.toml', '--batch', '4'], ['--optim.lr', '0.1', '--run.epochs=2'])
    """
    rest, settings = [], []
    places = iter(words)
    for word in places:
        if word.startswith("--") and "." in word.partition("=")[0]:
            settings.append(word)
            if "=" not in word:
                settings += [next(places, "")]
        else:
            rest.append(word)
    return rest, settings


def of_words(words: Sequence[str], batch: int, small: bool, ranks: int) -> Subject:
    """Return a workload, or with configuration files and flags what a run would train.

    Parameters
    ----------
    words : sequence of str
        The name of a workload; or files that end in ``.toml``, and flags of settings.
    batch : int
        Samples of one rank if not 0.
    small : bool
    ranks : int
        Over which the batch of a configuration is spread.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    if len(words) == 1 and Path(words[0]).suffix != ".toml":
        return of_model(words[0], batch, small)
    paths, flags = split(words)
    if not paths:
        raise ConfigError(
            f"model: got {' '.join(words) or 'nothing'}, needed the name of a workload or a "
            "configuration file (*.toml) with its flags"
        )
    config, _ = load(paths, flags, os.environ)
    whole = batch * ranks if batch else config.data.batch
    records = open_records(
        config.data.train,
        inputs=config.data.inputs,
        targets=config.data.targets,
        cache_bytes=config.data.cache_mib * build.MIB,
    )
    plan = Plan(records.n, max(1, min(whole, records.n)), 0, records.grain, records.window)
    loader = Loader(records, plan, 0, ranks, None, 1, config.device.dtype)
    net, goal = build.objective(config, loader, CPU)
    share = part(plan.batch, 0, ranks, build.shard(config) or 1)
    count = min(build.shard(config) or plan.batch, share.stop - share.start)
    return Subject(
        config.model.name,
        net,
        goal,
        batch_specs(loader, count),
        count,
        build.optimizer(config),
        build.memory(config),
    )
