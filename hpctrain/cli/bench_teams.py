"""``bench teams``: what a rank needs of memory for a model that all ranks share."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import psutil

from hpctrain import backend, models
from hpctrain.autograd import Spec
from hpctrain.cli.threads import limit_threads
from hpctrain.comm.group import Group
from hpctrain.comm.team import Team
from hpctrain.comm.world import start
from hpctrain.graph.execute import Executor
from hpctrain.nn import Block
from hpctrain.parallel.hollow import fill, hollow, start_hollow
from hpctrain.parallel.program import Objective, training_plan
from hpctrain.parallel.shared_model import divide, local_parameters, shared, take_part

__all__ = ["needed", "teams"]

DEEP = {"inputs": 512, "hidden": (512,) * 16, "classes": 10}
WIDE = {"vocab": 4096, "width": 256, "heads": 8, "depth": 4, "steps": 128}
SMALL: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "gpt": {"vocab": 64, "width": 64, "heads": 8, "depth": 1, "steps": 8},
        "mlp": {"inputs": 64, "hidden": (64, 64), "classes": 10},
    }
)


def teams(only: str = "", batch: int = 8, pause: float = 1e-4, threads: int = 1) -> None:
    """Print what a rank needs of memory for a model whose layers all ranks share.

    Planned bytes are those of parameters, gradients and the values of a step; the measured ones
    what the process has grown by after a step.

    Args:
        only: gpt or mlp; both if it is empty.
        batch: samples of a step, for the gpt; the mlp has 128 times as many.
        pause: seconds between two looks for a message.
        threads: threads of a rank.
    """
    cases: Mapping[str, tuple[dict[str, Any], int]] = {
        "gpt": (WIDE, batch),
        "mlp": (DEEP, 128 * batch),
    }
    with start() as world:
        limit_threads(world, threads)
        for name, (sizes, samples) in cases.items():
            if only not in ("", name):
                continue
            needed(name, SMALL[name], 2, world.group, pause)  # kernels are made, code is loaded
            found = needed(name, sizes, samples, world.group, pause)
            if world.rank == 0:
                print(json.dumps(found), flush=True)


def needed(
    name: str, sizes: Mapping[str, Any], batch: int, group: Group, pause_s: float
) -> dict[str, Any]:
    """Make one step of a model that the ranks of ``group`` share; collective.

    Returns
    -------
    dict
        Ranks, planned MiB of parameters with gradients and of the values of a step, and the
        measured MiB of both together.
    """
    process, device, team = psutil.Process(), backend.choose("cpu"), Team(group, pause_s)
    work = models.workload(name, batch, **sizes)
    arrays = work.make(np.random.default_rng(0))
    before = process.memory_info().rss
    parameters, drawn = _hollow(work.net, device)
    goal = Objective(work.net, work.loss)
    specs = tuple([Spec.of(a)] for a in arrays)
    division = divide(goal, parameters, (specs[0], specs[1]), team, device)
    mine = local_parameters(parameters, division, team, device)
    for path, whole in parameters.items():
        fill(whole, device, 0, path, drawn[path])
        take_part(mine[path], whole.data().asnumpy(), division.cut_of(path), team)
        hollow(whole)
    wholes, own = ([p.data() for p in found.values()] for found in (parameters, mine))
    objective = shared(goal, wholes, own, division, team)
    plan = training_plan(objective, (specs[0], specs[1]), own, own, device)
    losses = np.empty(plan.graph.specs[plan.graph.outputs[0]].shape, "f4")
    outputs = [losses, np.empty((), "f4"), *(t.grad.value for t in own)]
    run = Executor(plan, [t.value for t in own], dict(enumerate(outputs)), device)
    run.feed([*arrays, np.array(1 / batch, "f4")])
    run.run()
    grown = process.memory_info().rss - before
    team.free()
    return {
        "model": name,
        "ranks": group.size,
        "parameters_mib": _mib(2 * sum(t.value.nbytes for t in own)),
        "values_mib": _mib(plan.arena_bytes),
        "measured_mib": _mib(grown),
        "loss": round(float(losses.mean()), 6),
    }


def _hollow(net: Block, device: backend.Device) -> tuple[Any, dict[str, Any]]:
    parameters = net.collect_params()
    return parameters, start_hollow(parameters, device, 0, "float32")


def _mib(nbytes: int) -> float:
    return round(nbytes / 2**20, 1)
